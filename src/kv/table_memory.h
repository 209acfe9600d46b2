// What a page table takes, and what its changes would take: bytes charged for pages and arrays. A view of the table,
// for the moment.
//
// Thread-safety: as the table's const members.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/table_tokens.h"

namespace kvasir {

class TableMemory {
 public:
  // `kept_columns`: whose open pages are kept until the pass ends; `array_bytes`: charged.
  TableMemory(const TableTokens& tokens, int kept_columns, std::uint64_t array_bytes)
      : tokens_(tokens), columns_(tokens.columns), kept_columns_(kept_columns), array_bytes_(array_bytes) {}

  // Bytes charged for the arrays of a table that has held at most `columns` columns at once.
  static std::uint64_t bytes_at(int lanes, int slots, const PageTableLayout& layout, std::int64_t columns);
  // What those of this table would be charged beyond what they are, were there so many columns.
  std::uint64_t growth(std::int64_t columns) const;
  // Columns for which arrays that are to hold so many have room. Grows by a quarter, so that growing costs O(1) a
  // column.
  static std::int64_t array_capacity(std::int64_t columns);

  // Columns whose pages are not encoded. O(their number), as the next two.
  int open_columns() const;
  // Bytes charged for its pages, and for those of them that nobody else refers to.
  std::uint64_t page_bytes() const;
  std::uint64_t own_page_bytes() const;

  // What append would take. Const: a plan changes nothing.
  struct AppendPlan {
    int columns = 0;                 // new ones
    int spares = 0;                  // of these, kept ready for tokens that move between runs
    int open_spares = 0;             // of these, with open pages
    int seals = 0;                   // columns there are already that are sealed
    int sealed = 0;                  // new columns that are sealed at once
    std::uint64_t pages = 0;         // to allocate, copies of a shared open column included
    std::uint64_t sealed_pages = 0;  // of these, encoded
    std::uint64_t bytes = 0;         // pages and arrays together
  };
  AppendPlan plan_append(int tokens) const;

  // Bytes for copies of all shared pages of a table of lists: the most that its apply or compact may take. 0 for
  // ranges. `append_first`: an append comes before, which copies a shared open page itself. O(1).
  std::uint64_t sharing_reserve(bool append_first = false) const;
  // Bytes that unshare takes, and the columns that it copies: shared ones with live tokens in `range`.
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
