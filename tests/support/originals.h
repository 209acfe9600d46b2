// The tokens and logits of tests/reference/originals, as write_originals.py and write_adapters.py make them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "replay/npy.h"
#include "support/engine_fixture.h"
#include "support/shared_data.h"

namespace kvasir::test {

inline constexpr int kOriginalTokens = 300;
inline constexpr int kOriginalVocabulary = 96;

// The model file of a name.
inline std::string original(const std::string& name) {
  return source_dir() + "/tests/reference/originals/" + name + ".gguf";
}

inline std::vector<TokenId> original_tokens() {
  std::vector<TokenId> ids;
  for (int i = 0; i < kOriginalTokens; ++i) ids.push_back(3 + (7 * i * i + 3 * i + 5) % (kOriginalVocabulary - 3));
  return ids;
}

// Of those tokens: [kOriginalTokens][kOriginalVocabulary].
inline std::vector<double> read_original_logits(const std::string& path) {
  auto file = MappedFile::open(path);
  EXPECT_TRUE(file.ok()) << file.status().message();
  const auto header = parse_npy_header(file->bytes(), path);
  EXPECT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->shape, (std::vector<std::int64_t>{kOriginalTokens, kOriginalVocabulary}));
  std::vector<float> logits(kOriginalTokens * kOriginalVocabulary);
  EXPECT_EQ(header->data_bytes, logits.size() * sizeof(float));
  std::memcpy(logits.data(), file->bytes().data() + header->data_offset, header->data_bytes);
  return {logits.begin(), logits.end()};
}

}  // namespace kvasir::test
