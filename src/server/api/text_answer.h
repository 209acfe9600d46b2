// Makes answers on the text thread, of a model or of none.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <functional>
#include <string>

#include "kvasir/status.h"
#include "server/http/exchange.h"
#include "server/models/model_desk.h"
#include "server/threads/text_thread.h"

namespace kvasir::server {

// Runs `work` on the text thread, and sends the body that it returns, with Exchange::fields, or an error. Before that,
// `done` (may be empty) runs once on the I/O thread, also if the request is refused.
void answer_on(TextThread& texts, Exchange exchange, std::function<Result<std::string>(Exchange&)> work,
               std::function<void()> done = {});

// Does the same with the model of this name (see ModelDesk::ask), once it is loaded; it stays loaded meanwhile.
void answer_of_model(ModelDesk& models, TextThread& texts, Exchange exchange, const std::string& name,
                     std::function<Result<std::string>(const Served&, Exchange&)> work);

}  // namespace kvasir::server
