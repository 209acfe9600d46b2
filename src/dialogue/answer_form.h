// The form of the answers to one request: the template's format, the request's tools, and whether the prompt ends
// inside thoughts.
// Thread-safety: immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dialogue/answer_format.h"
#include "kvasir/answer.h"
#include "kvasir/status.h"

namespace kvasir {

struct Tool {
  std::string name;
  nlohmann::ordered_json parameters;  // a JSON schema; null if the tool takes none
  bool strict = false;
};

// Reads a list of tools in the form of OpenAI's API. Errors: kInvalidArgument, about("tools").
Result<std::vector<Tool>> read_tools(std::string_view json);

// What the parsers of one request's answers have in common.
struct AnswerRules {
  AnswerFormat format;
  std::vector<Tool> tools;
  bool starts_in_thoughts = false;
  bool json_content = false;  // the content is JSON: a mark inside a string of it marks nothing
  bool may_think = true;      // an answer under a grammar may begin with thoughts
  static constexpr int kMostCalls = 128;
  int most_calls = kMostCalls;  // the answer ends with this one: what follows it is dropped

  const Tool* find_tool(std::string_view name) const;
};

// Whether a prompt that ends with `opening` leaves thoughts open.
bool opens_thoughts(const ThoughtFormat& format, std::string_view opening);

std::shared_ptr<const AnswerForm> make_answer_form(std::shared_ptr<const AnswerRules> rules);

// Returns the id of an answer's call.
std::string call_id(std::uint64_t seed, int call, bool is_short);

}  // namespace kvasir
