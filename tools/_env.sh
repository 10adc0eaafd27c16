# Sourced by the scripts beside it: makes the project's virtual environment, .venv, once.
# An extra is installed again when pyproject.toml has changed or the folder was moved.

# DELTASTORE_VERSIONS=lowest: .venv-lowest instead, with the oldest allowed release of all that users' installations bring
# along. newest: .venv-newest, brought up to the newest allowed release of everything each time.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
versions=${DELTASTORE_VERSIONS:-}
venv=$root/.venv${versions:+-$versions}
python=$venv/bin/python

stamp() {
    echo "# installed from $root"
    cat "$root/pyproject.toml"
}

require_python() {
    if ! command -v python3 >/dev/null; then
        echo "deltastore needs Python 3.11 or newer, but there is no python3 on PATH." >&2
        exit 1
    fi
    if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "deltastore needs Python 3.11 or newer, but python3 is $(python3 --version 2>&1) ($(command -v python3))." >&2
        exit 1
    fi
}

# lowest: the lower bounds of what the product itself needs, as constraints.
lowest() {
    "$python" - "$root/pyproject.toml" <<'TEXT'
import re, sys, tomllib

project = tomllib.load(open(sys.argv[1], "rb"))["project"]
extras = project["optional-dependencies"]
for need in [*project["dependencies"], *extras["langgraph"], *extras["cli"], *extras["postgres"]]:
    name, bound = re.match(r"([\w-]+)[^>]*>=([\w.]+)", need).groups()
    print(f"{name}=={bound}")
TEXT
}

# install_extra NAME…: has the project installed with at least one of these extras; the first when with none.
install_extra() {
    local extra
    if "$python" -c '' 2>/dev/null; then
        for extra in "$@"; do
            [ "$versions" != newest ] && stamp | cmp -s - "$venv/installed-$extra" && return
        done
    fi
    require_python
    echo "Setting up $venv (needed once, takes about a minute) …"
    "$python" -m pip --version >/dev/null 2>&1 || python3 -m venv --clear "$venv"
    local choice=()
    case $versions in
    lowest)
        lowest >"$venv/lowest.txt"
        choice=(--constraint "$venv/lowest.txt")
        ;;
    newest) choice=(--upgrade --upgrade-strategy eager) ;;
    esac
    # Twice quiet leaves errors only: warnings there are about pip's own configuration.
    "$python" -m pip install -qq --disable-pip-version-check "${choice[@]}" --editable "${root}[$1]"
    stamp >"$venv/installed-$1"
}
