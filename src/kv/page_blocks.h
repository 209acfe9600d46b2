// The free pages of one class, grouped in blocks of adjacent pages. A block takes memory as its pages are first
// written. It gives all of its memory back when none of its pages is in use and another block needs memory. New pages
// come first from blocks that are partly in use, so that other blocks become free.
//
// Thread-safety: none; as the pool.
#pragma once

#include <cstdint>
#include <vector>

namespace kvasir {

class PageBlocks {
 public:
  // The least size of a block in bytes. A block is a whole number of the system's pages.
  static constexpr std::uint64_t kLeastBytes = std::uint64_t{256} << 10;

  // `page_bytes`: size of a page in the store. `links`: [capacity], outlives this object; a free page's element holds
  // the next free page, the elements of pages in use belong to the pool.
  PageBlocks(std::uint64_t page_bytes, std::uint64_t capacity, std::uint32_t* links);

  // Makes the next `pages` calls of take() infallible. May throw std::bad_alloc; then nothing has changed.
  void prepare(std::uint64_t pages);

  // Whether a page can be taken from a block that has memory.
  bool has_free() const { return partial_ != kNone || empty_ != kNone; }
  struct Taken {
    std::uint32_t page = 0;
    bool fresh = false;  // its bytes are zero: never written since its block got memory
  };
  // REQUIRES: prepare(), and fewer than `capacity` pages in use.
  Taken take();
  void give(std::uint32_t page);  // REQUIRES: it is in use

  std::uint64_t pages() const { return pages_; }  // pages of all blocks that have memory
  std::uint64_t block_pages() const { return block_pages_; }
  // Pages with this number or a higher one were never in use.
  std::uint64_t end() const { return blocks_.empty() ? 0 : (blocks_.size() - 1) * block_pages_ + last_size(); }

  // Takes the memory from a block that has no page in use. Returns false if there is no such block.
  struct Dropped {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  };
  bool drop_empty(Dropped* dropped);

  // KVASIR_CHECKs the lists, and that exactly the pages with `references` are in use. O(pages).
  void check_invariants(const std::uint32_t* references) const;

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Block {
    std::uint32_t used = 0;      // pages in use
    std::uint32_t touched = 0;   // leading pages that were in use since the block got memory
    std::uint32_t free = kNone;  // the newest free one of the touched pages; links_ leads to the next
    std::uint32_t next = kNone;  // in the block's list
    std::uint32_t previous = kNone;
    bool has_memory = false;
  };

  std::uint32_t size_of(std::uint32_t block) const;
  std::uint32_t last_size() const { return size_of(static_cast<std::uint32_t>(blocks_.size() - 1)); }
  std::uint32_t* list_of(const Block& block, std::uint32_t size);  // null: the block is in no list
  void enter(std::uint32_t block);
  void leave(std::uint32_t block);
  std::uint32_t open();

  std::uint64_t capacity_;
  std::uint64_t block_pages_;
  std::uint32_t* links_;
  std::uint64_t pages_ = 0;
  std::vector<Block> blocks_;        // blocks that ever had memory
  std::vector<std::uint32_t> gone_;  // blocks without memory
  std::uint32_t partial_ = kNone;    // list of blocks with memory, some pages in use
  std::uint32_t empty_ = kNone;      // list of blocks with memory, no page in use
};

}  // namespace kvasir
