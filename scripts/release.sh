#!/usr/bin/env bash
# scripts/release.sh [--out DIR]: makes everything that a release has (RELEASING.md) in one folder, and checks it. Publishes nothing.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=scripts/lib/say.sh
. "$ROOT/scripts/lib/say.sh"

CRATES=(lockstep-contract lockstep-paths lockstep-process tcpstore lockstep-launch c10d)
# What checks CITATION.cff, in a virtual environment in .tools.
CFFCONVERT=cffconvert==2.0.0

usage() {
  cat <<'END'
usage: scripts/release.sh [--out DIR] [--skip STEP]...

Makes and checks what a release has: crates, wheels, the checkout, what the image that grades is built from, the book, a bill of materials,
checksums. Needs what scripts/wheel.sh, scripts/check_packages.py and scripts/book.sh need, and a checkout without changes that are not
committed.

  --out DIR     the release's folder, which must be new or empty (default: target/release-VERSION)
  --skip STEP   leave out crates, wheels, book or citation; the folder is then not a release, as the last line says. May be repeated
END
}

OUT='' SKIPPED=()
while [ $# -gt 0 ]; do
  case $1 in
  --out | --skip)
    [ $# -ge 2 ] || die "$1 needs a value" "scripts/release.sh --help"
    if [ "$1" = --out ]; then
      OUT=$(realpath -m -- "$2")
    else
      case $2 in crates | wheels | book | citation) SKIPPED+=("$2") ;; *) die "there is no step '$2'" "scripts/release.sh --help" ;; esac
    fi
    shift
    ;;
  -h | --help) usage && exit ;;
  *) die "unknown option '$1'" "scripts/release.sh --help" ;;
  esac
  shift
done

NOT_VERIFIED=()
not_verified() { NOT_VERIFIED+=("$1") && say "not verified here: $1"; }

skipped() {
  local step
  for step in "${SKIPPED[@]}"; do [ "$step" != "$1" ] || return 0; done
  return 1
}

# field FILE NAME: the value of a line such as `version: 0.1.0` or `version = "0.1.0"`, the first in the file.
field() { sed -n "s/^$2 *[:=] *\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p" "$1" | head -n 1; }

cd "$ROOT"
VERSION=$(field Cargo.toml version)
OUT=${OUT:-$ROOT/target/release-$VERSION}

# All that must agree before anything is made.
check_version() {
  local cited dated name
  cited=$(field CITATION.cff version)
  [ "$cited" = "$VERSION" ] || problem "CITATION.cff is of version $cited, the workspace of $VERSION" "edit CITATION.cff"
  dated=$(field CITATION.cff date-released)
  grep -qxF "## $VERSION ($dated)" CHANGELOG.md || grep -qxF "## [$VERSION] - $dated" CHANGELOG.md ||
    problem "CHANGELOG.md has no section \"## $VERSION ($dated)\", the day in CITATION.cff" "RELEASING.md, step 2"
  for name in "${CRATES[@]}"; do
    grep -q "^$name = .*version = \"$VERSION\"" Cargo.toml ||
      problem "Cargo.toml does not ask for $VERSION of $name" "RELEASING.md, step 1"
  done
  [ -z "$(git status --porcelain)" ] || problem "the checkout has changes that are not committed" "git status"
  [ ! -e "$OUT" ] || [ -z "$(ls -A "$OUT")" ] || problem "$OUT is not empty" "remove it, or name another with --out"
  stop_on_problems
}

make_crates() {
  local crate
  python3 scripts/check_packages.py # packs them, too
  for crate in "${CRATES[@]}"; do
    cp "${CARGO_TARGET_DIR:-target}/package/$crate-$VERSION.crate" "$OUT"
  done
}

make_wheels() {
  scripts/wheel.sh --out "$OUT"
  if [ "$(uname -m)" != x86_64 ]; then
    not_verified "the wheel for x86_64, on a machine of another architecture"
  elif python3 scripts/check_wheel.py "$OUT/lockstep_course-$VERSION-py3-none-manylinux_2_28_x86_64.whl"; then
    not_verified "the wheel for aarch64 was built, and not run"
  else
    die "the wheel does not do what it should (see above)"
  fi
  # maturin writes down what is compiled in.
  python3 - "$OUT"/lockstep_course-*_x86_64.whl "$OUT/lockstep-$VERSION.cdx.json" <<'END'
import json, os, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    bills = [name for name in wheel.namelist() if "/sboms/" in name and name.endswith(".json")]
    if len(bills) != 1:
        sys.exit(f"release: error: the wheel has {len(bills)} bills of materials, not one: {bills}")
    # Without the place of the checkout, by which the workspace's own packages are referred to.
    bill = json.loads(wheel.read(bills[0]).decode().replace(f"path+file://{os.getcwd()}/", ""))
if bill.get("bomFormat") != "CycloneDX" or len(bill.get("components", [])) < 50:
    sys.exit("release: error: the wheel's bill of materials is not one")
with open(sys.argv[2], "w") as file:
    json.dump(bill, file, indent=1)
print(f"release: {len(bill['components'])} components in the bill of materials")
END
}

# All that a build of the image that grades needs, with the wheels of both architectures.
make_containers() {
  local work
  work=$(mktemp -d)
  scripts/image.sh --grade --context --wheels "$OUT" --work "$work"
  mv "$work/grading" "$work/lockstep-containers-$VERSION"
  tar -czf "$OUT/lockstep-containers-$VERSION.tar.gz" -C "$work" "lockstep-containers-$VERSION"
  rm -r "$work"
}

make_book() {
  local work
  work=$(mktemp -d)
  scripts/book.sh build --dest-dir "$work/lockstep-book-$VERSION"
  cp book/LICENSE "$work/lockstep-book-$VERSION/"
  tar -czf "$OUT/lockstep-book-$VERSION.tar.gz" -C "$work" "lockstep-book-$VERSION"
  rm -r "$work"
}

check_citation() {
  local tools=$ROOT/.tools/citation
  [ -x "$tools/bin/cffconvert" ] ||
    { python3 -m venv --clear "$tools" && "$tools/bin/pip" install --quiet --disable-pip-version-check "$CFFCONVERT"; } ||
    { not_verified "CITATION.cff: cffconvert could not be installed" && return; }
  "$tools/bin/cffconvert" --validate -i CITATION.cff
}

check_version
mkdir -p "$OUT"
skipped citation || check_citation
git archive --format=tar.gz --prefix="lockstep-$VERSION/" --output="$OUT/lockstep-$VERSION.tar.gz" HEAD
skipped crates || make_crates
skipped book || make_book
skipped wheels || make_wheels
skipped wheels || make_containers

(
  cd "$OUT"
  rm -f SHA256SUMS
  sha256sum -- * >SHA256SUMS
  sha256sum --check --quiet SHA256SUMS
)
for archive in "$OUT"/*.tar.gz "$OUT"/*.crate; do
  [ ! -e "$archive" ] || tar -tzf "$archive" >/dev/null || die "$archive cannot be read"
done
printf '\n%s:\n' "$OUT"
ls -l "$OUT" | awk 'NR > 1 { printf "  %9.1f kB  %s\n", $5 / 1000, $9 }'
for what in "${NOT_VERIFIED[@]}"; do printf 'not verified here: %s\n' "$what"; done
if [ ${#SKIPPED[@]} -gt 0 ]; then
  printf 'not a release: left out %s\n' "${SKIPPED[*]}"
else
  printf 'release %s is complete; RELEASING.md says how it is published\n' "$VERSION"
fi
