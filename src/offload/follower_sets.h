// Of one cluster of KV heads, those that follow its R head: the tokens that they have in memory beside their newest
// pages, and where. All of them have the same ones, at the same places.
//
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/batch.h"
#include "kv/keep_plan.h"

namespace kvasir {

class FollowerSet {
 public:
  // Room for `most` tokens; forgets what it held.
  void reserve(std::int64_t most);
  void clear();
  // Holds what another does, with as much room.
  void copy(const FollowerSet& other, std::int64_t most);

  struct Missing {
    std::uint32_t token = 0;
    std::uint32_t row = 0;
  };
  // Holds the tokens of `ranges` before `end` from now on. Those that it did not hold take rows of those that leave,
  // and are appended to `missing`, in order. REQUIRES: no more than there is room for.
  void change(std::span<const IndexRange> ranges, TokenIndex end, std::vector<Missing>* missing);

  std::span<const std::uint32_t> tokens() const { return tokens_; }  // ascending
  std::span<const std::uint32_t> rows() const { return rows_; }      // of each token

  // Appends an entry for each page of `slots` tokens that some are of, and the place in rows() of its first.
  void add_entries(int slots, std::vector<PageEntry>* entries, std::vector<std::uint32_t>* first) const;

  // Bytes allocated once reserve(most) was called.
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
