#!/bin/sh
# Fails with one line unless the Java that Spark would start is 17 or newer.
# Spark looks at JAVA_HOME first and at PATH only without it, and so do we.

java=${JAVA_HOME:+$JAVA_HOME/bin/}java
need="Spark needs Java 17 or newer: apt-get install openjdk-17-jre-headless, or set JAVA_HOME"

if ! said=$("$java" -version 2>&1); then
    echo "no working Java found ('$java' does not run); $need" >&2
    exit 1
fi

# 'openjdk version "17.0.15" 2025-04-15'; before Java 9 it was "1.8.0_392".
version=$(printf '%s\n' "$said" | sed -n 's/.* version "\([^"]*\)".*/\1/p' | head -n 1)
major=${version%%[!0-9]*}

if [ "${major:-0}" -lt 17 ]; then
    echo "found Java ${version:-of unknown version} ('$java'); $need" >&2
    exit 1
fi
