// llama.cpp's parser of answers as a worker: JSON lines in and out, as `benchmarks.jobs` describes them.
//
// The parser is set up as llama.cpp's server does it: from a chat template, the request's tools and whether the model
// may reason. No model is loaded. An answer is parsed as a whole, as the server does at the end of each.
#include "chat.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <iostream>
#include <sstream>

using json = nlohmann::ordered_json;

static std::string read_file(const std::string & path) {
    std::ifstream file(path);
    if (!file) {
        throw std::runtime_error("no template " + path);
    }
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

static json answer(const json & job) {
    auto templates = common_chat_templates_init(nullptr, read_file(job.at("template")));
    common_chat_templates_inputs inputs;
    common_chat_msg user;
    user.role               = "user";
    user.content            = "Go on.";
    inputs.messages         = { user };
    inputs.tools            = common_chat_tools_parse_oaicompat(common_json::parse(job.at("tools").dump()));
    inputs.enable_thinking  = job.at("thinks");
    inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    inputs.parallel_tool_calls = true;
    auto params = common_chat_templates_apply(templates.get(), inputs);

    common_chat_parser_params parser(params);
    parser.reasoning_format = inputs.reasoning_format;
    parser.parse_tool_calls = !job.at("tools").empty();
    if (!params.parser.empty()) {
        parser.parser.load(params.parser);
    }

    json readings = json::array();
    for (const std::string text : job.at("texts")) {
        try {
            const auto message = common_chat_parse(text, false, parser);
            json calls = json::array();
            for (const auto & call : message.tool_calls) {
                calls.push_back({ { "name", call.name }, { "arguments", call.arguments } });
            }
            readings.push_back({ { "content", message.content }, { "reasoning", message.reasoning_content }, { "calls", calls } });
        } catch (const std::exception & error) {
            readings.push_back({ { "error", error.what() } });
        }
    }
    return { { "readings", readings } };
}

int main() {
    std::cout << json{ { "versions", { { "llama.cpp", LLAMA_CPP_COMMIT } } } }.dump() << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
        json out;
        try {
            out = answer(json::parse(line));
        } catch (const std::exception & error) {
            out = { { "error", error.what() } };
        }
        std::cout << out.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
    }
}
