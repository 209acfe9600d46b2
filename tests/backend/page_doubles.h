// A stand-in for what leaves pages unread.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "backend/page_access.h"
#include "base/check.h"

namespace kvasir::test {

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
