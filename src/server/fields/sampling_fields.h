// Reads how a request's tokens are chosen and what ends its text, by the names of OpenAI, vLLM and llama-server.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// The parts of these that other APIs have under names of their own. Errors: as read_sampling.

// Reads temperature, top_k, top_p, min_p and the other numbers that have the same names in all APIs.
Status read_sampling_numbers(const Fields& body, SamplingOptions& sampling);

// Returns what absent fields default to: `usual`, or the plain distribution where the body gives a temperature.
SamplingOptions usual_sampling(const Fields& body, const SamplingOptions& usual);

// Reads "seed", a whole number. 0 is a seed like any other, though the engine would draw one for it.
Status read_seed(const Fields& body, std::uint64_t& seed);

// Reads a string or a list of at most kMostStops strings, none empty.
Status read_stops(const Fields& body, const char* field, std::vector<std::string>& stops);

// Reads a number of tokens for which -1 is as many as there may be.
Status read_window(const Fields& body, const char* field, int least, int& tokens);

}  // namespace kvasir::server
