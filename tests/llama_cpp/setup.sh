#!/usr/bin/env bash
# Builds what tests/llama_cpp and benchmarks/engine run: FOLDER/llama_cpp/llama-server, llama.cpp's server for CPUs with
# AVX2 (13 MB; 15 minutes of one core), llama-batched-bench, and beside them the vocabularies that llama.cpp tests itself with (90 MB). No registry has a
# server to install: the source is in the package llama-cpp-python (docs/decisions/0053).
# usage: setup.sh FOLDER [PYTHON]   needs cmake, g++ and make
set -euo pipefail

folder=${1:?usage: setup.sh FOLDER [PYTHON]}
python=${2:-python3}
package=llama-cpp-python==0.3.36
number=11312 # Dovetail asks older builds for no grammar; a source package does not know its own number
out=$folder/llama_cpp

[[ -f "$out/.made" && "$(cat "$out/.made")" == "$package" ]] && exit
echo "building $out/llama-server" >&2
rm -rf "$out"
mkdir -p "$out/source" "$out/vocabularies"
"$python" -m pip download --disable-pip-version-check -qq --no-deps --no-binary :all: --dest "$out" "$package"
tar -xzf "$out"/llama_cpp_python-*.tar.gz -C "$out/source" --strip-components=3 --wildcards '*/vendor/llama.cpp/*'
# Not optimized where it does not compute: that halves the time of the build.
cmake -S "$out/source" -B "$out/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DCMAKE_CXX_FLAGS=-w \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_NUMBER=$number -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF -DGGML_NATIVE=OFF -DGGML_AVX2=ON \
    -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_OPENMP=OFF >/dev/null
cmake --build "$out/build" --target llama-server llama-batched-bench --parallel "$(nproc)" >/dev/null
mv "$out"/build/bin/llama-{server,batched-bench} "$out"
mv "$out/source/models/"ggml-vocab-* "$out/vocabularies"
rm -rf "$out/source" "$out/build" "$out"/*.tar.gz
echo "$package" >"$out/.made"
