// Reads how a request's tokens are chosen and what ends its text, by the names of OpenAI, vLLM and llama-server.
// Thread-safety: pure functions.
#pragma once

#include "kvasir/options.h"
#include "kvasir/status.h"
#include "server/fields/json_fields.h"

namespace kvasir::server {

// Reads the options of sampling. `usual`: for requests that give no temperature. If they give one, absent fields
// default as in OpenAI's API: the distribution is not truncated. Errors: kInvalidArgument, about the field. Ranges are
// not checked; validate() does.
Status read_sampling(const Fields& body, const SamplingOptions& usual, SamplingOptions& sampling);

// Reads stop, include_stop_str_in_output, ignore_eos, min_tokens, stop_token_ids, allowed_token_ids and bad_words.
// Errors: as read_sampling; numbers and lengths of stop strings are checked.
Status read_endings(const Fields& body, GenerateOptions& generate);

}  // namespace kvasir::server
