// Routes that do not generate: a prompt's tokens, and the memory that it would take.
//
//   POST /tokenize                      {prompt | messages, add_special_tokens, return_token_strs}
//                                       -> {"tokens": [...], "count", "max_model_len", "token_strs"?}
//                                       {content, add_special, with_pieces}, as llama-server
//                                       -> {"tokens": [...]}, or of {"id", "piece"}
//   POST /detokenize                    {tokens} -> {"prompt", "content"}, which are the same
//   POST /v1/completions/render         a completion's body -> [{"token_ids": [...]}], one for each prompt
//   POST /v1/chat/completions/render    a chat's body -> {"token_ids": [...]}
//   POST /v1/kv/plan                    {prompt | messages | prompt_tokens, max_tokens, n, kv: {policy}} -> the memory;
//                                       what the whole server has free now only for those that may see it (Caller)
//
// Tokens are exactly those that a completion of the same body would read. All work is done on the text thread.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/http/router.h"
#include "server/threads/step_thread.h"
#include "server/threads/text_thread.h"

namespace kvasir::server {

class TextRoutes {
 public:
  // `steps` and `texts` must outlive this. `model`: its name for clients. `policy`: for requests that name none; empty:
  // the engine's default.
  TextRoutes(const StepThread& steps, TextThread& texts, std::string model, std::string policy)
      : steps_(steps), texts_(texts), model_(std::move(model)), policy_(std::move(policy)) {}

  // This must outlive the router.
  void add_routes(Router& router);

 private:
  using Work = Result<std::string> (TextRoutes::*)(const Exchange& exchange) const;

  void add(Router& router, std::string_view path, Work work);
  Result<nlohmann::json> parse(const Exchange& exchange) const;
  Result<std::string> tokenize(const Exchange& exchange) const;
  Result<std::string> tokenize_content(const nlohmann::json& json) const;
  Result<std::string> detokenize(const Exchange& exchange) const;
  Result<std::string> render_completion(const Exchange& exchange) const;
  Result<std::string> render_chat(const Exchange& exchange) const;
  Result<std::string> plan(const Exchange& exchange) const;

  const StepThread& steps_;
  TextThread& texts_;
  std::string model_;
  std::string policy_;
};

}  // namespace kvasir::server
