#!/usr/bin/env bash
# Builds the programs of Kubernetes' control plane from Debian's source package, once a machine, and prints the folder that holds them.
#
#   tests/clusters_real/build_kubernetes.sh [PROGRAM...]     without names: kube-apiserver kube-scheduler kube-controller-manager
#
# The folder is ${TRIMTAB_TEST_CLUSTERS:-${XDG_CACHE_HOME:-~/.cache}/trimtab-test-clusters}/kubernetes-VERSION-SCRIPT: another version of the
# package or of this script builds anew. Exit status 3 says that this machine cannot build it, with the reason on standard error.
# Takes 4 to 8 minutes on two cores, 2 GB of memory and 4 GB of disk, which it frees.
set -euo pipefail
version='1.20.5+really1.20.2-1.1+deb12u1'
release=1.20.2
packages="golang-go golang-github-modern-go-reflect2-dev etcd-server"
programs=${*:-kube-apiserver kube-scheduler kube-controller-manager}
cache=${TRIMTAB_TEST_CLUSTERS:-${XDG_CACHE_HOME:-$HOME/.cache}/trimtab-test-clusters}
built=$cache/kubernetes-$release-$(sha256sum "${BASH_SOURCE[0]}" | cut -c1-12)

missing=; for program in $programs; do [ -x "$built/$program" ] || missing="$missing $program"; done
if [ -z "$missing" ]; then echo "$built"; exit 0; fi

cannot() { echo "Kubernetes cannot be built here: $1" >&2; exit 3; }
command -v apt-get >/dev/null && command -v dpkg >/dev/null || cannot "no apt-get: the sources are Debian's"
if ! dpkg -s $packages >/dev/null 2>&1; then
  [ "$(id -u)" = 0 ] || cannot "install $packages"
  export DEBIAN_FRONTEND=noninteractive
  install="apt-get install -y -qq --no-install-recommends $packages"
  $install >/dev/null 2>&1 || { apt-get update -qq >&2 && $install >/dev/null; } || cannot "apt-get has no $packages"
fi

mkdir -p "$built"
exec 9>"$built.lock"; flock 9   # two sessions do not build side by side
missing=; for program in $programs; do [ -x "$built/$program" ] || missing="$missing $program"; done
if [ -z "$missing" ]; then echo "$built"; exit 0; fi
work=$(mktemp -d "$cache/build-XXXXXX"); trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

# The machine's own package sources, asked for source packages, with lists and caches apart from the system's.
mkdir -p "$work/apt/parts" "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/source"
for file in /etc/apt/sources.list.d/*.sources; do
  [ -e "$file" ] && sed 's/^Types:.*/Types: deb-src/' "$file" > "$work/apt/parts/$(basename "$file")"
done
{ [ ! -e /etc/apt/sources.list ] || sed -n 's/^deb /deb-src /p' /etc/apt/sources.list; } > "$work/apt/sources.list"
apt="apt-get -qq -o Dir::Etc::sourcelist=$work/apt/sources.list -o Dir::Etc::sourceparts=$work/apt/parts
  -o Dir::State::lists=$work/apt/lists -o Dir::Cache=$work/apt/cache -o APT::Sandbox::User=$(id -un)"
$apt update >&2 || cannot "apt-get update of source packages failed"
(cd "$work/source" && $apt source --download-only "kubernetes=$version" >&2) || cannot "no source package kubernetes=$version"
tar xzf "$work"/source/kubernetes_*.orig.tar.gz -C "$work/source"

export GOPATH=$work/go GOCACHE=$work/go-cache GO111MODULE=off CGO_ENABLED=0 GOFLAGS=   # GOPATH mode: -mod=vendor refuses this tree
mkdir -p "$GOPATH/src/k8s.io"
ln -sfn "$(echo "$work"/source/kubernetes-*/)" "$GOPATH/src/k8s.io/kubernetes"
cd "$GOPATH/src/k8s.io/kubernetes"
# The vendored reflect2 1.0.1 corrupts memory when go >= 1.18 compiles it; Debian's 1.0.2 does not.
rm vendor/github.com/modern-go/reflect2/*.{go,s}
cp -L /usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} vendor/github.com/modern-go/reflect2/
# One generated file is not in the archive.
go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
inputs=$(grep -Rl --include=*.go '+k8s:openapi-gen=' pkg cmd vendor/k8s.io/ \
  | grep -v -e code-generator -e sample-apiserver -e /kube-openapi/ -e zz_generated | xargs -n1 dirname | sort -u \
  | sed s,^,k8s.io/kubernetes/, | paste -sd,)
"$work/openapi-gen" -i "$inputs" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
  -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$work/violations" --output-base "$GOPATH/src" >&2
flags="-s -w"
for told in component-base/version client-go/pkg/version; do
  told=k8s.io/kubernetes/vendor/k8s.io/$told
  flags="$flags -X $told.gitVersion=v$release -X $told.gitMajor=1 -X $told.gitMinor=20"
done
mkdir "$work/bin"
go build -ldflags "$flags" -o "$work/bin/" \
  $(printf './cmd/%s ' $missing) >&2
mv "$work"/bin/* "$built/"
echo "$built"
