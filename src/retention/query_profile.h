// How the queries of a model's heads lie before rotation, for `triattention` (TriAttention, arXiv 2604.04921): the mean
// of each pair of elements that RoPE turns, as a complex number, and the mean of its length, over the tokens of texts.
//
// The file is text, one statement a line, in this order; its size and every number are bounded:
//
//   kvasir query profile 1
//   fingerprint HEX              of the model (runtime/loaded_model.h)
//   layers N
//   heads N                      query heads of a layer
//   head_dim N
//   articles N                   pieces of text that were read apart
//   tokens N                     in all
//   layer N                      for each layer, in order:
//   mean X X ...                 a line for each head: pairs in order, real and imaginary part of each
//   length X X ...               the same head: pairs in order
//   checksum HEX                 XXH3-128 of all lines before it
//
// Elements 2 i and 2 i + 1 of a query are pair i.
// Thread-safety: plain values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "kvasir/status.h"

namespace kvasir {

struct QueryProfile {
  Hash128 fingerprint;
  int layers = 0;
  int heads = 0;
  int head_dim = 0;  // even
  std::int64_t articles = 0;
  std::int64_t tokens = 0;
  std::vector<double> means;    // [layers][heads][head_dim]
  std::vector<double> lengths;  // [layers][heads][head_dim / 2]

  std::span<const double> mean(int layer, int head) const { return row(means, layer, head, head_dim); }
  std::span<const double> length(int layer, int head) const { return row(lengths, layer, head, head_dim / 2); }
  bool operator==(const QueryProfile&) const = default;

 private:
  std::span<const double> row(std::span<const double> all, int layer, int head, int size) const {
    const auto at = static_cast<std::size_t>(layer) * static_cast<std::size_t>(heads) + static_cast<std::size_t>(head);
    return all.subspan(at * static_cast<std::size_t>(size), static_cast<std::size_t>(size));
  }
};

// The most that a profile describes.
inline constexpr int kMostQueryHeads = 1024;
inline constexpr int kMostQueryHeadDim = 4096;

// REQUIRES: all numbers are finite and at most 10^9 in magnitude.
std::string format_query_profile(const QueryProfile& profile);
// `name`: of the file, for messages. Errors: kInvalidArgument; the message names the line that is wrong.
Result<QueryProfile> parse_query_profile(std::string_view text, const std::string& name);
// Errors: those of reading and parsing.
Result<QueryProfile> read_query_profile(const std::string& path);

}  // namespace kvasir
