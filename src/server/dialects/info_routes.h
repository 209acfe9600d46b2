// Routes of the dialects that do not generate:
//
//   POST /v1/messages/count_tokens                       Anthropic
//   GET /api/tags, /api/ps, /api/version; POST /api/show Ollama
//   GET /props, /slots; POST /apply-template             llama-server
//   GET /                                                says what this is, where no other page is there
// Thread-safety: the I/O thread's alone.
#pragma once

#include <cstdint>
#include <string>

#include "kvasir/options.h"
#include "server/http/router.h"
#include "server/threads/step_thread.h"
#include "server/threads/text_thread.h"

namespace kvasir::server {

class InfoRoutes {
 public:
  struct Options {
    std::string model;         // as clients name it
    SamplingOptions sampling;  // of requests that give no temperature
    int slots = 1;             // requests that run at a time
    std::int64_t since = 0;    // when the server started, in seconds since 1970
    std::string version;       // of the program
  };

  // `steps` and `texts` must outlive this.
  InfoRoutes(StepThread& steps, TextThread& texts, Options options)
      : steps_(steps), texts_(texts), options_(std::move(options)) {}

  // This must outlive the router.
  void add_routes(Router& router);

 private:
  using Work = Result<std::string> (InfoRoutes::*)(Exchange& exchange) const;

  // Adds a route whose answer is made on the text thread.
  void add(Router& router, std::string_view path, ErrorForm form, Work work);
  Result<std::string> count_tokens(Exchange& exchange) const;
  Result<std::string> apply_template(Exchange& exchange) const;
  Result<std::string> show(Exchange& exchange) const;
  void slots(Exchange exchange) const;

  StepThread& steps_;
  TextThread& texts_;
  const Options options_;
};

}  // namespace kvasir::server
