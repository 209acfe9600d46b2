#include "kv/page_blocks.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace kvasir {
namespace {

constexpr std::uint64_t kSystemPage = 4096;

// Pages of a block. A block is a whole number of the system's pages, so that no two blocks share one.
std::uint64_t pages_of_block(std::uint64_t page_bytes, std::uint64_t least_bytes) {
  const std::uint64_t unit = kSystemPage / std::gcd(page_bytes, kSystemPage);
  const std::uint64_t unit_bytes = unit * page_bytes;
  return unit * std::max<std::uint64_t>((least_bytes + unit_bytes - 1) / unit_bytes, 1);
}

}  // namespace

PageBlocks::PageBlocks(std::uint64_t page_bytes, std::uint64_t capacity, std::uint32_t* links)
    : capacity_(capacity), block_pages_(pages_of_block(page_bytes, kLeastBytes)), links_(links) {}

void PageBlocks::prepare(std::uint64_t pages) {
  const std::size_t blocks = blocks_.size() + static_cast<std::size_t>(pages / block_pages_) + 2;
  if (blocks > blocks_.capacity()) blocks_.reserve(std::max(blocks, 2 * blocks_.capacity()));
  gone_.reserve(blocks_.capacity());  // so drop_empty never allocates
}

std::uint32_t PageBlocks::size_of(std::uint32_t block) const {
  return static_cast<std::uint32_t>(std::min(block_pages_, capacity_ - block * block_pages_));
}

std::uint32_t* PageBlocks::list_of(const Block& block, std::uint32_t size) {
  if (!block.has_memory || block.used == size) return nullptr;
  return block.used == 0 ? &empty_ : &partial_;
}

void PageBlocks::enter(std::uint32_t number) {
  Block& block = blocks_[number];
  std::uint32_t* const list = list_of(block, size_of(number));
  if (list == nullptr) return;
  block.previous = kNone;
  block.next = *list;
  if (*list != kNone) blocks_[*list].previous = number;
  *list = number;
}

void PageBlocks::leave(std::uint32_t number) {
  Block& block = blocks_[number];
  std::uint32_t* const list = list_of(block, size_of(number));
  if (list == nullptr) return;
  if (block.next != kNone) blocks_[block.next].previous = block.previous;
  (block.previous != kNone ? blocks_[block.previous].next : *list) = block.next;
}

// Gives memory to a block without memory, or to a new one. Returns its number.
std::uint32_t PageBlocks::open() {
  std::uint32_t number = 0;
  if (!gone_.empty()) {
    number = gone_.back();
    gone_.pop_back();
  } else {
    number = static_cast<std::uint32_t>(blocks_.size());
    KVASIR_CHECK(number * block_pages_ < capacity_ && blocks_.size() < blocks_.capacity());
    blocks_.emplace_back();
  }
  blocks_[number] = {};
  blocks_[number].has_memory = true;
  pages_ += size_of(number);
  enter(number);
  return number;
}

PageBlocks::Taken PageBlocks::take() {
  const std::uint32_t number = partial_ != kNone ? partial_ : empty_ != kNone ? empty_ : open();
  Block& block = blocks_[number];
  const bool stays = block.used > 0 && block.used + 1 < size_of(number);  // the block stays at the head of its list
  if (!stays) leave(number);
  Taken taken;
  if (block.free != kNone) {
    taken.page = block.free;
    block.free = links_[taken.page];
  } else {
    taken.page = static_cast<std::uint32_t>(number * block_pages_) + block.touched++;
    taken.fresh = true;
  }
  ++block.used;
  if (!stays) enter(number);
  return taken;
}

void PageBlocks::give(std::uint32_t page) {
  const auto number = static_cast<std::uint32_t>(page / block_pages_);
  Block& block = blocks_[number];
  const bool stays = block.used > 1 && block.used < size_of(number);
  if (!stays) leave(number);
  links_[page] = block.free;
  block.free = page;
  --block.used;
  if (!stays) enter(number);
}

bool PageBlocks::drop_empty(Dropped* dropped) {
  if (empty_ == kNone) return false;
  const std::uint32_t number = empty_;
  leave(number);
  *dropped = {number * block_pages_, size_of(number)};
  pages_ -= dropped->count;
  blocks_[number] = {};
  gone_.push_back(number);
  return true;
}

void PageBlocks::check_invariants(const std::uint32_t* references) const {
  std::uint64_t pages = 0;
  std::size_t without = 0, partial = 0, empty = 0;
  for (std::uint32_t number = 0; number < blocks_.size(); ++number) {
    const Block& block = blocks_[number];
    const std::uint32_t size = size_of(number);
    const std::uint64_t first = number * block_pages_;
    std::vector<char> free(size, 0);
    std::uint32_t in_list = 0;
    for (std::uint32_t page = block.free; page != kNone; page = links_[page], ++in_list) {
      KVASIR_CHECK(page >= first && page - first < block.touched && free[page - first] == 0);
      free[page - first] = 1;
    }
    KVASIR_CHECK(block.touched <= size && block.used + in_list == block.touched);
    for (std::uint32_t i = 0; i < size; ++i)
      KVASIR_CHECK((references[first + i] > 0) == (i < block.touched && free[i] == 0));
    if (!block.has_memory) {
      KVASIR_CHECK(block.touched == 0);
      ++without;
      continue;
    }
    pages += size;
    partial += block.used > 0 && block.used < size ? 1 : 0;
    empty += block.used == 0 ? 1 : 0;
  }
  KVASIR_CHECK(pages == pages_ && without == gone_.size());
  const auto length = [&](std::uint32_t list) {
    std::size_t blocks = 0;
    std::uint32_t before = kNone;
    for (; list != kNone; before = list, list = blocks_[list].next, ++blocks)
      KVASIR_CHECK(blocks_[list].previous == before && blocks <= blocks_.size());
    return blocks;
  };
  KVASIR_CHECK(length(partial_) == partial && length(empty_) == empty);
}

}  // namespace kvasir
