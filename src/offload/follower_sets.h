// The hot tokens of one cluster of KV heads (offload/follower_heads.h), and the rows that hold them: the same in each
// of its heads. Thread-safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/batch.h"
#include "kv/keep_plan.h"

namespace kvasir {

class FollowerSet {
 public:
  // Makes room for `most` tokens, and removes all.
  void reserve(std::int64_t most);
  void clear();  // frees the memory, too
  // Becomes a copy of another set, with room for `most` tokens.
  void copy(const FollowerSet& other, std::int64_t most);

  struct Missing {
    std::uint32_t token = 0;
    std::uint32_t row = 0;
  };
  // Replaces the tokens with those of `ranges` before `end`. New ones take free rows, or rows of tokens that leave, and
  // are appended to `missing` in order. REQUIRES: no more tokens than reserve made room for.
  void change(std::span<const IndexRange> ranges, TokenIndex end, std::vector<Missing>* missing);

  std::span<const std::uint32_t> tokens() const { return tokens_; }  // ascending
  std::span<const std::uint32_t> rows() const { return rows_; }      // of each token

  // Appends an entry for each page of `slots` tokens that holds some of these, and the index in rows() of its first.
  void add_entries(int slots, std::vector<PageEntry>* entries, std::vector<std::uint32_t>* first) const;

  // Returns the bytes() after reserve(most).
  static std::uint64_t bytes_for(std::int64_t most) {
    return static_cast<std::uint64_t>(most) * 5 * sizeof(std::uint32_t);
  }
  std::uint64_t bytes() const {
    return (tokens_.capacity() + rows_.capacity() + free_.capacity() + next_tokens_.capacity() +
            next_rows_.capacity()) *
           sizeof(std::uint32_t);
  }

 private:
  std::vector<std::uint32_t> tokens_;
  std::vector<std::uint32_t> rows_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> next_tokens_;
  std::vector<std::uint32_t> next_rows_;
};

}  // namespace kvasir
