#!/bin/sh
# Find a Chromium or Chrome for the tests of the pages, or install Debian's.
set -eu
find_browser() {
    command -v chromium || command -v chromium-browser || command -v google-chrome-stable || command -v google-chrome
}
refuse() {
    echo "$1; install Chromium or Chrome so that it is found in PATH, then run: make setup-browser" >&2
    exit 2
}
if ! find_browser > /dev/null; then
    as_root=
    [ "$(id -u)" = 0 ] || as_root="sudo --non-interactive"
    command -v apt-get > /dev/null || refuse "PATH holds no browser for the tests of the pages, and no apt-get"
    [ -z "$as_root" ] || command -v sudo > /dev/null || refuse "PATH holds no browser, and this user may install none"
    $as_root apt-get update --quiet > /dev/null
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends chromium > /dev/null
    find_browser > /dev/null || refuse "PATH holds no browser though the package chromium was installed"
fi
echo "The tests look at pages in $(find_browser)"
