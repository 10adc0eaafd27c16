# Sourced by the scripts beside it: makes the project's virtual environment, .venv, once.
# An extra is installed again when pyproject.toml has changed or the folder was moved.

# With DELTASTORE_LOWEST set it is .venv-lowest, with the oldest release of all that users' installations bring along.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv${DELTASTORE_LOWEST:+-lowest}
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
for need in [*project["dependencies"], *extras["langgraph"], *extras["cli"]]:
    name, bound = re.match(r"([\w-]+)[^>]*>=([\w.]+)", need).groups()
    print(f"{name}=={bound}")
TEXT
}

# install_extra NAME…: has the project installed with at least one of these extras; the first when with none.
install_extra() {
    local extra
    if "$python" -c '' 2>/dev/null; then
        for extra in "$@"; do
            stamp | cmp -s - "$venv/installed-$extra" && return
        done
    fi
    require_python
    echo "Setting up $venv (needed once, takes about a minute) …"
    "$python" -m pip --version >/dev/null 2>&1 || python3 -m venv --clear "$venv"
    local oldest=()
    if [ -n "${DELTASTORE_LOWEST:-}" ]; then
        lowest >"$venv/lowest.txt"
        oldest=(--constraint "$venv/lowest.txt")
    fi
    # Twice quiet leaves errors only: warnings there are about pip's own configuration.
    "$python" -m pip install -qq --disable-pip-version-check "${oldest[@]}" --editable "${root}[$1]"
    stamp >"$venv/installed-$1"
}
