#include "dialogue/answer_form.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/ordered_json.h"
#include "base/status.h"
#include "dialogue/answer_parser.h"
#include "dialogue/channel_parser.h"

namespace kvasir {
namespace {

constexpr std::size_t kMostTools = 1024;
constexpr std::size_t kLongestToolName = 256;

class Form final : public AnswerForm {
 public:
  explicit Form(std::shared_ptr<const AnswerRules> rules) : rules_(std::move(rules)) {}

  std::unique_ptr<AnswerParser> parser(std::uint64_t seed) const override {
    if (rules_->format.channels) return make_channel_parser(rules_, seed);
    return make_answer_parser(rules_, seed);
  }

 private:
  std::shared_ptr<const AnswerRules> rules_;
};

std::uint64_t mixed(std::uint64_t value) {  // splitmix64
  value += 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

bool is_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= kLongestToolName && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.' || c == ':' || c == '/';
  });
}

Status wrong_tools(std::size_t index, std::string_view what) {
  return invalid_argument("'tools[{}]{}", index, what).about({"tools"});
}

}  // namespace

void Answer::add(const AnswerPiece& piece) {
  switch (piece.kind) {
    case AnswerPiece::Kind::kContent: content += piece.text; break;
    case AnswerPiece::Kind::kReasoning: reasoning += piece.text; break;
    case AnswerPiece::Kind::kCallBegins: calls.push_back({piece.id, piece.name, ""}); break;
    case AnswerPiece::Kind::kArguments: calls.back().arguments += piece.text; break;
    case AnswerPiece::Kind::kCallEnds: break;
    case AnswerPiece::Kind::kCallBreaks: broken = true; break;
    case AnswerPiece::Kind::kCallFails:
      calls.pop_back();
      content += piece.text;
      break;
  }
}

Result<std::vector<Tool>> read_tools(std::string_view json) {
  const nlohmann::ordered_json list = parse_ordered_json(json).value;
  if (!list.is_array() || list.size() > kMostTools)
    return invalid_argument("'tools' must be a list of at most {} tools", kMostTools).about({"tools"});
  std::vector<Tool> tools;
  std::set<std::string> names;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto& each = list[i];
    if (!each.is_object() || each.value("type", nlohmann::ordered_json()) != "function")
      return wrong_tools(i, ".type' must be \"function\"; no other type is supported here");
    const auto function = each.find("function");
    if (function == each.end() || !function->is_object()) return wrong_tools(i, ".function' must be an object");
    const auto name = function->find("name");
    if (name == function->end() || !name->is_string() || !is_tool_name(name->get_ref<const std::string&>()))
      return wrong_tools(i, ".function.name' must be 1 to 256 letters, digits, '_', '-', '.', ':' and '/'");
    if (!names.insert(*name).second) return wrong_tools(i, ".function.name' is the name of an earlier tool, too");
    Tool tool = {*name, nullptr, false};
    if (const auto given = function->find("parameters"); given != function->end() && !given->is_null()) {
      if (!given->is_object()) return wrong_tools(i, ".function.parameters' must be an object, a JSON schema");
      tool.parameters = *given;
    }
    if (const auto strict = function->find("strict"); strict != function->end() && !strict->is_null()) {
      if (!strict->is_boolean()) return wrong_tools(i, ".function.strict' must be true or false");
      tool.strict = *strict;
    }
    tools.push_back(std::move(tool));
  }
  return tools;
}

const Tool* AnswerRules::find_tool(std::string_view name) const {
  const auto found = std::ranges::find_if(tools, [&](const Tool& tool) { return tool.name == name; });
  return found == tools.end() ? nullptr : &*found;
}

bool opens_thoughts(const ThoughtFormat& format, std::string_view opening) {
  if (format.open.empty()) return false;
  const std::size_t open = opening.rfind(format.open);
  return open != std::string_view::npos && opening.find(format.close, open) == std::string_view::npos;
}

std::shared_ptr<const AnswerForm> make_answer_form(std::shared_ptr<const AnswerRules> rules) {
  return std::make_shared<Form>(std::move(rules));
}

std::string call_id(std::uint64_t seed, int call, bool is_short) {
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string id = is_short ? "" : "call_";
  std::uint64_t word = mixed(seed + mixed(static_cast<std::uint64_t>(call)));
  for (int i = 0; i < (is_short ? 9 : 24); ++i) {
    if (i % 9 == 8) word = mixed(word);
    id += kDigits[word % kDigits.size()];
    word /= kDigits.size();
  }
  return id;
}

}  // namespace kvasir
