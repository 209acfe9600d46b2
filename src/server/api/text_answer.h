// Makes answers on the text thread, of a model or of none.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "kvasir/status.h"
#include "server/http/exchange.h"
#include "server/models/model_desk.h"
#include "server/threads/text_thread.h"

namespace kvasir::server {

// Returns the header field with which an error of this code asks the client to try again, if it does.
HttpFields retry_fields(int http);

// Runs `work` on the text thread, and sends the body that it returns, with Exchange::fields, or an error. Before that,
// `done` (may be empty) runs once on the I/O thread, also if the request is refused.
void answer_on(TextThread& texts, Exchange exchange, std::function<Result<std::string>(Exchange&)> work,
               std::function<void()> done = {});

// Checks a body that would have a model loaded, so that a malformed one loads none. Calls `next` once, on the I/O
// thread: with no error if the body is a JSON object, or at once if the model is open or there is none of this name.
// Otherwise the body is parsed on the text thread. REQUIRES: `next` keeps the body alive.
void check_before_loading(const ModelDesk& models, TextThread& texts, std::string_view name, std::string_view body,
                          const Caller& caller, std::function<void(const std::optional<ErrorText>&)> next);

// Does the same as answer_on() with the model of this name (see ModelDesk::ask), once it is loaded; it stays loaded
// meanwhile. The body must be a JSON object. Refuses the request if `name` is an error.
void answer_of_model(ModelDesk& models, TextThread& texts, Exchange exchange, const Result<std::string>& name,
                     std::function<Result<std::string>(const Served&, Exchange&)> work);

}  // namespace kvasir::server
