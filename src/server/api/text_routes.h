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
// Each takes "model", and loads that model if need be. Tokens are exactly those that a completion of the same body
// would read. All work is done on the text thread. Thread-safety: the I/O thread's alone.
#pragma once

#include "server/http/router.h"
#include "server/models/model_desk.h"
#include "server/threads/text_thread.h"

namespace kvasir::server {

class TextRoutes {
 public:
  // Both must outlive this.
  TextRoutes(ModelDesk& models, TextThread& texts) : models_(models), texts_(texts) {}

  // This must outlive the router.
  void add_routes(Router& router);

 private:
  ModelDesk& models_;
  TextThread& texts_;
};

}  // namespace kvasir::server
