// Routes of the dialects that do not generate:
//
//   POST /v1/messages/count_tokens                       Anthropic
//   GET /api/tags, /api/ps, /api/version; POST /api/show Ollama
//   GET /props, /slots; POST /apply-template             llama-server
//   GET and POST /lora-adapters                          llama-server
//   GET /                                                says what this is, where no other page is there
//
// /props, /slots and /lora-adapters are about the default model, or that of ?model=NAME; they load none. /api/show
// loads none either, and names the capability "tools" only of a loaded model. Thread-safety: the I/O thread's alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "server/http/router.h"
#include "server/models/model_desk.h"
#include "server/threads/text_thread.h"

namespace kvasir::server {

class InfoRoutes {
 public:
  struct Options {
    std::int64_t since = 0;  // when the server started, in seconds since 1970
    std::string version;     // of the program
  };

  // Both must outlive this.
  InfoRoutes(ModelDesk& models, TextThread& texts, Options options)
      : models_(models), texts_(texts), options_(std::move(options)) {}

  // This must outlive the router.
  void add_routes(Router& router);

 private:
  void show(Exchange exchange) const;
  void props(const Exchange& exchange) const;
  void slots(Exchange exchange) const;
  void list_adapters(Exchange exchange) const;
  void set_adapters(Exchange exchange) const;
  // Runs `question` between two passes of a loaded model, and answers with the adapters as they are then. Its error is
  // the answer instead.
  void answer_adapters(Exchange exchange, const std::string& model, std::function<Status(Engine&)> question) const;
  // Returns the model that a path's query names. Refuses the request for the name of none and for a malformed query.
  std::optional<ModelDesk::Info> find(const Exchange& exchange) const;

  ModelDesk& models_;
  TextThread& texts_;
  const Options options_;
};

}  // namespace kvasir::server
