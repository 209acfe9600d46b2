// A head profile of three layers with four KV heads, two of them representatives, in other clusters in each layer.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "retention/head_profile.h"

namespace kvasir::test {

inline HeadProfile clustered_profile(const Hash128& fingerprint) {
  HeadProfile profile{.fingerprint = fingerprint,
                      .layers = 3,
                      .kv_heads = 4,
                      .top_k = 8,
                      .queries = 1,
                      .articles = 1,
                      .tokens = 9,
                      .reps = 2,
                      .seed = 1,
                      .overlap = {},
                      .clusters = {}};
  profile.clusters = {{{0, 1, 1, 0}, {0, 2}}, {{0, 0, 1, 0}, {1, 2}}, {{0, 1, 1, 1}, {0, 3}}};
  for (int layer = 0; layer < profile.layers; ++layer) profile.overlap.push_back(std::vector<double>(16, 1.0));
  return profile;
}

inline void write_text(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  std::fwrite(text.data(), 1, text.size(), file);
  std::fclose(file);
}

}  // namespace kvasir::test
