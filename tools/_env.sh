# Sourced by the scripts beside it: makes the project's virtual environment, .venv, once.
# An extra is installed again when pyproject.toml has changed or the folder was moved.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
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
    # Twice quiet leaves errors only: warnings there are about pip's own configuration.
    "$python" -m pip install -qq --disable-pip-version-check --editable "${root}[$1]"
    stamp >"$venv/installed-$1"
}
