// Stand-ins for what fetches pages and for what leaves pages unread.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <vector>

#include "backend/page_access.h"
#include "base/check.h"

namespace kvasir::test {

// Calls visit(pages of the layer's lanes, written) for each column of each table of the layer.
template <class Visit>
void for_each_column(const Batch& batch, int layer, int layers, Visit&& visit) {
  for (const BatchSequence& sequence : batch.sequences) {
    const int per_layer = std::max(1, sequence.tables / layers);
    for (int t = 0; t < per_layer; ++t) {
      const int number = sequence.tables == 1 ? 0 : layer * per_layer + t;
      const BatchTable& table = batch.tables[sequence.first_table + static_cast<std::size_t>(number)];
      const int lanes = sequence.tables == 1 ? table.lanes / layers : table.lanes;
      const int first = sequence.tables == 1 ? layer * lanes : 0;
      std::set<std::uint32_t> columns;
      for (const BatchFrame& frame : table.frames)
        for (const PageEntry& entry : frame.entries) columns.insert(entry.column);
      for (const std::uint32_t column : columns) {
        const bool written =
            std::ranges::any_of(table.slots, [&](const WriteSlot& slot) { return slot.column == column; });
        visit(table.pages.subspan(
                  std::size_t{column} * static_cast<std::size_t>(table.lanes) + static_cast<std::size_t>(first),
                  static_cast<std::size_t>(lanes)),
              written);
      }
    }
  }
}

// Delivers two pages of three late: until wait(), the store holds NaNs in their place. Pages that the batch writes to
// are there from the start.
class LatePages final : public PageSource {
 public:
  // The store and its format; both outlive the source.
  LatePages(PageStore* store, std::size_t page_bytes, int layers)
      : store_(*store), page_bytes_(page_bytes), layers_(layers) {}

  struct Events {
    int leases = 0;
    int waits = 0;         // that delivered something
    int late = 0;          // pages
    int asked_early = 0;   // resident() of a page that is there
    int asked_late = 0;    // resident() of one that is not yet
    int never_waited = 0;  // leases given back with pages that nobody waited for
  };
  Events events;

  std::unique_ptr<PageLease> lease(int layer, const Batch& batch) override {
    KVASIR_CHECK(!leased_);
    leased_ = true;
    ++events.leases;
    for_each_column(batch, layer, layers_, [&](std::span<const PageId> pages, bool written) {
      for (const PageId page : pages) {
        if (written || (static_cast<std::size_t>(page) + static_cast<std::size_t>(events.leases)) % 3 == 0) continue;
        if (bytes_.contains(page)) continue;  // shared
        std::vector<std::byte>& bytes = bytes_[page];
        bytes.resize(page_bytes_);
        store_.read(page, bytes);
        store_.write(page, std::vector(page_bytes_, std::byte{0xff}));
        ++events.late;
      }
    });
    return std::make_unique<Lease>(this);
  }

 private:
  class Lease final : public PageLease {
   public:
    explicit Lease(LatePages* pages) : pages_(*pages) {}
    ~Lease() override {
      if (!pages_.bytes_.empty()) ++pages_.events.never_waited;
      pages_.deliver();
      pages_.leased_ = false;
    }
    bool resident(PageId page) const override {
      const bool late = pages_.bytes_.contains(page);
      ++(late ? pages_.events.asked_late : pages_.events.asked_early);
      return !late;
    }
    void wait() override {
      pages_.events.waits += pages_.bytes_.empty() ? 0 : 1;
      pages_.deliver();
    }

   private:
    LatePages& pages_;
  };

  void deliver() {
    for (const auto& [page, bytes] : bytes_) store_.write(page, bytes);
    bytes_.clear();
  }

  PageStore& store_;
  std::size_t page_bytes_;
  int layers_;
  bool leased_ = false;
  std::map<PageId, std::vector<std::byte>> bytes_;  // of the pages that are late
};

// Reads all, some or no slots of an entry by the ordinal of its column, the lane and the layer, so that passes change
// nothing.
class SomeEntries final : public EntrySelector {
 public:
  enum class Choice { kAll, kNone, kSome };
  explicit SomeEntries(Choice choice) : choice_(choice) {}

  std::atomic<int> read = 0;    // entries of which a row read something
  std::atomic<int> unread = 0;  // of which it read nothing

  bool selects(int layer) const override {
    static_cast<void>(layer);
    return true;
  }
  void select(const LaneRow& row, std::span<SlotMask> masks) override {
    std::size_t at = 0;
    for (const BatchFrame& frame : row.table->frames)
      for (const PageEntry& entry : frame.entries) {
        SlotMask& mask = masks[at++];
        KVASIR_CHECK(mask == ~SlotMask{0});
        if (choice_ == Choice::kNone) mask = 0;
        const std::uint64_t mixed = entry.ordinal * 5 + static_cast<std::uint64_t>(row.layer * 3 + row.lane);
        if (choice_ == Choice::kSome && mixed % 3 == 0) mask = 0;
        if (choice_ == Choice::kSome && mixed % 3 == 1) mask = 0x5a6b'77e3'5a6b'77e3u << mixed % 7;
        ++(mask != 0 ? read : unread);
      }
    KVASIR_CHECK(at == masks.size());
  }

 private:
  Choice choice_;
};

}  // namespace kvasir::test
