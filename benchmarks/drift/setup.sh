#!/usr/bin/env bash
# Makes what `python -m benchmarks.drift` runs besides Dovetail: vLLM's and SGLang's environments (those of
# benchmarks/reading/setup.sh), Dynamo's frontend, and llama.cpp's parser as a program (3 MB, made in two minutes).
# usage: setup.sh FOLDER [PYTHON]   needs g++ and make
#
# llama.cpp comes from the source package of llama-cpp-python, which has a copy of it. Only the files that parse answers
# are compiled: what they call to run a model is never reached, so the linker leaves it open.
set -euo pipefail

folder=${1:?usage: setup.sh FOLDER [PYTHON]}
python=${2:-python3}
here=$(cd "$(dirname "$0")" && pwd)
package=llama-cpp-python==0.3.36
commit=0c1e57098 # what that package's CHANGELOG.md names

"$here/../reading/setup.sh" "$folder" "$python" vllm sglang

# The frontend without the engines that Dynamo starts behind it: 260 MB.
dynamo=ai-dynamo-runtime==1.6.1
if [[ ! -f "$folder/dynamo/.made" || "$(cat "$folder/dynamo/.made")" != "$dynamo" ]]; then
    echo "setting up $folder/dynamo" >&2
    rm -rf "$folder/dynamo"
    "$python" -m venv "$folder/dynamo"
    "$folder/dynamo/bin/python" -m pip install --disable-pip-version-check -qq --no-deps "$dynamo"
    echo "$dynamo" >"$folder/dynamo/.made"
fi

out=$folder/llamacpp
made="$package $(sha256sum "$here/worker_llamacpp.cpp" | cut -d" " -f1)"
if [[ ! -f "$out/.made" || "$(cat "$out/.made")" != "$made" ]]; then
    echo "setting up $out" >&2
    rm -rf "$out"
    mkdir -p "$out/source"
    "$python" -m pip download --disable-pip-version-check -qq --no-deps --no-binary :all: --dest "$out" "$package"
    tar -xzf "$out"/llama_cpp_python-*.tar.gz -C "$out/source" --strip-components=3 --wildcards \
        '*/vendor/llama.cpp/common' '*/vendor/llama.cpp/include' '*/vendor/llama.cpp/ggml/include' \
        '*/vendor/llama.cpp/vendor/nlohmann' '*/vendor/llama.cpp/models/templates'
    cat >"$out/source/Makefile" <<'MAKE'
PARTS := common json json-schema json-schema-to-grammar log peg-parser trie unicode
SOURCES := $(wildcard common/chat*.cpp common/parsers/*.cpp common/jinja/*.cpp) $(PARTS:%=common/%.cpp)
CXXFLAGS := -std=c++17 -O1 -w -Icommon -Iinclude -Iggml/include -Ivendor -DLLAMA_CPP_COMMIT='"$(COMMIT)"'
worker: $(SOURCES:.cpp=.o) worker.o
	$(CXX) -no-pie $^ -Wl,--unresolved-symbols=ignore-all -lpthread -o $@
MAKE
    cp "$here/worker_llamacpp.cpp" "$out/source/worker.cpp"
    make -s -C "$out/source" -j"$(nproc)" COMMIT="$commit" worker
    mv "$out/source/worker" "$out/worker"
    mv "$out/source/models/templates" "$out/templates"
    rm -rf "$out/source" "$out"/*.tar.gz
    echo "$made" >"$out/.made"
fi
