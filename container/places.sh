#!/bin/sh
# Makes the places of an image that any user may write to, where no volume lies over them.
# usage: places.sh ROOT
set -eu
for place in tmp home/elastic; do
    mkdir -p "$1/$place"
    chmod 1777 "$1/$place"
done
