// Checks what a caller asks for and encodes its text. Any thread may call these.
#pragma once

#include <memory>
#include <string_view>

#include "kvasir/model_text.h"
#include "kvasir/request.h"
#include "session/session.h"

namespace kvasir {

// Checks the settings of a request except its policy. Errors: kInvalidArgument naming the field.
Status check_request(const LoadedModel& model, const RequestOptions& options);
// Returns the field that holds the prompt. Errors: kInvalidArgument unless there is exactly one.
Result<std::string_view> prompt_field(const RequestOptions& options);
// See Engine::text.
std::unique_ptr<ModelText> make_model_text(std::shared_ptr<const LoadedModel> model);

// Checks as check_request and encodes the prompt. Errors: kInvalidArgument naming the field.
Result<RequestText> encode_request(const LoadedModel& model, const RequestOptions& options);

// Sets the text's grammar to RequestOptions::grammar, where there are no messages that have more to say of it. No
// effect if GenerateOptions::grammar is given. Errors: as ModelText::compile.
Status compile_grammar(const LoadedModel& model, const RequestOptions& options, RequestText& text);

// Returns the Status, with this field of RequestOptions as its setting unless it names others.
Status about_unless_said(Status status, std::string_view field);

}  // namespace kvasir
