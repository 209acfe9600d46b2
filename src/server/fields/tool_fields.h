// Reads the fields of a chat that are about tools and thoughts.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>

#include "kvasir/request.h"
#include "kvasir/status.h"
#include "server/api/api_request.h"
#include "server/fields/json_fields.h"

namespace kvasir::server {

inline constexpr std::size_t kMostCalls = 128;  // of one message

// Reads "tools", "tool_choice" and "parallel_tool_calls". The tools themselves are checked when the prompt is written.
// Errors: kInvalidArgument; kUnsupported for a choice that cannot be enforced.
Status read_tools(const Fields& body, RequestOptions& options);

// Reads "reasoning_effort", "reasoning", "thinking", the thinking budgets and "reasoning_format", and what
// chat_template_kwargs say of thinking. Errors: kInvalidArgument, kUnsupported.
Status read_thinking(const Fields& body, ApiRequest& request);

// Reads `field` of `object` as a budget of thoughts: -1: none, 0: no thoughts. Of several budgets the least counts.
// `name`: the field as the client wrote it, a string literal. Errors: kInvalidArgument.
Status read_thought_budget(const Fields& object, const char* field, const char* name, ApiRequest& request);

// Switches thoughts off where the least budget is 0, whatever else was asked for. Call it when all fields were read.
void settle_thinking(RequestOptions& options);

// Sets how much the model thinks. `field`: that gave the effort. Errors: kInvalidArgument for an effort that no API
// has.
Status set_effort(const std::string& effort, const char* field, ApiRequest& request);

// Reads Anthropic's "thinking". Errors: kInvalidArgument.
Status read_thinking_object(const Fields& body, ApiRequest& request);

// Returns tools without a "function" object, {"name", "description", SCHEMA, "strict"}, in the form of OpenAI's chats.
// `schema`: the name of their schemas. Keys keep their order.
std::string chat_tools(std::string_view tools, const char* schema);

// Reads what a message has besides role and content: "tool_calls", "tool_call_id", "name", "reasoning_content" (or
// "reasoning"). `index`: of the message. Errors: kInvalidArgument, about("messages").
Status read_message_parts(const nlohmann::json& json, std::size_t index, Message& message);

}  // namespace kvasir::server
