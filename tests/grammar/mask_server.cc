// Answers requests about masks, a JSON object a line, so that scripts in other languages can compare them:
//   {"vocabulary": true}          {"tokens": [hex bytes...], "ends": [ids]}; bytes of control tokens are empty
//   {"compile": {"kind": "json_schema", "text": "...", "choices": [...], "compact": true}}
//                                 {"ok": true, "ms": 1.5} or {"ok": false, "code": 3, "error": "..."}
//   {"restart": true}             {"ok": true}; begins a new text of the same grammar
//   {"mask": true}                {"mask": "hex of the bits, lowest byte first", "us": 12.5, "complete": false}
//   {"accept": 17}                {"ok": true}
// Usage: mask_server MODEL
#include <fmt/core.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "grammar/compiler.h"
#include "grammar/matcher.h"
#include "text/vocabularies.h"

namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin, double per_second) {
  return std::chrono::duration<double>(Clock::now() - begin).count() * per_second;
}

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

kvasir::GrammarSource source_of(const Json& json) {
  using Kind = kvasir::GrammarSource::Kind;
  kvasir::GrammarSource source;
  const std::string kind = json.at("kind");
  source.kind = kind == "json_schema" ? Kind::kJsonSchema
                : kind == "gbnf"      ? Kind::kGbnf
                : kind == "regex"     ? Kind::kRegex
                : kind == "choice"    ? Kind::kChoice
                                      : Kind::kJsonObject;
  source.text = json.value("text", "");
  source.choices = json.value("choices", std::vector<std::string>());
  source.compact = json.value("compact", false);
  return source;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto tokenizer = kvasir::test::tokenizer_of_file(argv[1]);
  if (tokenizer == nullptr) return 1;
  const kvasir::GrammarCompiler compiler(*tokenizer);
  std::shared_ptr<const kvasir::Grammar> compiled;
  std::optional<kvasir::GrammarMatcher> matcher;
  for (std::string line; std::getline(std::cin, line);) {
    const Json request = Json::parse(line);
    Json answer;
    if (request.contains("vocabulary")) {
      answer["tokens"] = Json::array();
      answer["ends"] = Json::array();
      for (std::size_t i = 0; i < tokenizer->vocabulary().pieces.size(); ++i) {
        const auto token = static_cast<kvasir::TokenId>(i);
        const bool control = kvasir::grammar::is_control(*tokenizer, token) || tokenizer->is_end(token);
        answer["tokens"].push_back(control ? "" : hex(tokenizer->bytes_of(token)));
        if (tokenizer->is_end(token)) answer["ends"].push_back(token);
      }
    } else if (request.contains("compile")) {
      const Clock::time_point begin = Clock::now();
      const auto grammar = compiler.compile(source_of(request["compile"]));
      answer = {{"ok", grammar.ok()}, {"ms", since(begin, 1e3)}};
      matcher.reset();
      if (grammar.ok()) {
        compiled = *grammar;
        matcher.emplace(compiled);
      } else {
        answer["code"] = static_cast<int>(grammar.status().code());
        answer["error"] = grammar.status().message();
      }
    } else if (request.contains("restart")) {
      matcher.emplace(compiled);
      answer = {{"ok", true}};
    } else if (request.contains("mask")) {
      const Clock::time_point begin = Clock::now();
      const auto mask = matcher->mask();
      const double us = since(begin, 1e6);
      if (!mask.ok()) {
        answer = {{"error", mask.status().message()}};
      } else {
        const char* bytes = reinterpret_cast<const char*>((*mask)->data());
        answer = {
            {"mask", hex(std::string_view(bytes, (*mask)->size() * 8))}, {"us", us}, {"complete", matcher->complete()}};
      }
    } else if (request.contains("accept")) {
      const kvasir::Status status = matcher->accept(request["accept"].get<kvasir::TokenId>());
      answer = {{"ok", status.ok()}, {"error", status.message()}};
    }
    std::cout << answer.dump() << std::endl;
  }
}
