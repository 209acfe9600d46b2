// The bytes charged for a page table's pages and arrays, and the bytes that its changes would charge. A view of the
// table, valid until the table changes.
//
// Thread-safety: as the table's const members.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/table_tokens.h"

namespace kvasir {

class TableMemory {
 public:
  // `kept_columns`: columns whose open pages are kept until the pass ends. `array_bytes`: bytes charged for the arrays.
  TableMemory(const TableTokens& tokens, int kept_columns, std::uint64_t array_bytes)
      : tokens_(tokens), columns_(tokens.columns), kept_columns_(kept_columns), array_bytes_(array_bytes) {}

  // Bytes charged for the arrays of a table whose largest number of columns so far is `columns`.
  static std::uint64_t bytes_at(int lanes, int slots, const PageTableLayout& layout, std::int64_t columns);
  // Additional bytes that the arrays would be charged if the table held `columns` columns.
  std::uint64_t growth(std::int64_t columns) const;
  // The capacity of arrays that have to hold `columns` columns. Grows by a quarter, so that growing costs O(1) a
  // column.
  static std::int64_t array_capacity(std::int64_t columns);

  // The number of columns whose pages are not encoded. O(that number), as the next two.
  int open_columns() const;
  // Bytes charged for the table's pages, and for those pages that only this table refers to.
  std::uint64_t page_bytes() const;
  std::uint64_t own_page_bytes() const;

  // What append would take.
  struct AppendPlan {
    int columns = 0;                 // new columns, spares included
    int spares = 0;                  // new columns kept for tokens that move between runs
    int open_spares = 0;             // spares with open pages
    int seals = 0;                   // existing columns that are sealed
    int sealed = 0;                  // new columns that are sealed at once
    std::uint64_t pages = 0;         // pages to allocate, copies of a shared open column included
    std::uint64_t sealed_pages = 0;  // pages to allocate that are encoded
    std::uint64_t bytes = 0;         // of pages and arrays together
  };
  // `of_chunk`: the tokens of the chunk that `tokens` are of, all of which may move between runs once it has run.
  AppendPlan plan_append(int tokens, int of_chunk) const;
  AppendPlan plan_append(int tokens) const { return plan_append(tokens, tokens); }

  // The most bytes that apply or compact may take for copies of shared pages and for fresh pages; 0 for ranges.
  // `append_first`: an append comes before, which copies a shared open page itself. O(open columns).
  std::uint64_t sharing_reserve(bool append_first = false) const;
  // Bytes that unshare takes, and the columns that it copies: shared columns with live tokens in `range`.
  std::uint64_t unshare_bytes(IndexRange range) const;
  std::vector<std::uint32_t> shared_columns(IndexRange range) const;

 private:
  void plan_spares(int tokens, AppendPlan* plan) const;
  template <class Applies>
  int count_open(const Applies& applies) const;
  int shared_open_columns() const;

  const TableTokens& tokens_;
  const TableColumns& columns_;
  int kept_columns_;
  std::uint64_t array_bytes_;
};

}  // namespace kvasir
