// The free pages of one class, by blocks of pages that follow each other. A block takes memory as its pages are first
// written, and gives it back as a whole: when none of its pages is in use and the memory is needed elsewhere. New pages
// come from blocks that are partly in use first, so that others come free.
//
// Thread-safety: none; as the pool.
#pragma once

#include <cstdint>
#include <vector>

namespace kvasir {

class PageBlocks {
 public:
  // Bytes of a block, at least; it is a whole number of the system's pages.
  static constexpr std::uint64_t kLeastBytes = std::uint64_t{256} << 10;

  // `page_bytes`: that a page takes in the store. `links`: [capacity], outlives this; of a free page it holds the next
  // one, of others whatever the pool writes there.
  PageBlocks(std::uint64_t page_bytes, std::uint64_t capacity, std::uint32_t* links);

  // Makes take() infallible for so many pages. May throw std::bad_alloc; then nothing has changed.
  void prepare(std::uint64_t pages);

  // Whether a page can be taken from a block that has memory.
  bool has_free() const { return partial_ != kNone || empty_ != kNone; }
  struct Taken {
    std::uint32_t page = 0;
    bool fresh = false;  // its bytes are zero: nothing was written since its block has memory
  };
  // REQUIRES: prepare(), and fewer than `capacity` pages in use.
  Taken take();
  void give(std::uint32_t page);  // REQUIRES: it is in use

  std::uint64_t pages() const { return pages_; }  // of all blocks that have memory
  std::uint64_t block_pages() const { return block_pages_; }
  // No page from this one on was ever in use.
  std::uint64_t end() const { return blocks_.empty() ? 0 : (blocks_.size() - 1) * block_pages_ + last_size(); }

  // Takes the memory from a block that has no page in use. False if there is none.
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
    std::uint32_t touched = 0;   // pages that were ever in use since it has memory: its first ones
    std::uint32_t free = kNone;  // the newest free one of these; the others follow by links
    std::uint32_t next = kNone;  // in its list
    std::uint32_t previous = kNone;
    bool has_memory = false;
  };

  std::uint32_t size_of(std::uint32_t block) const;
  std::uint32_t last_size() const { return size_of(static_cast<std::uint32_t>(blocks_.size() - 1)); }
  std::uint32_t* list_of(const Block& block, std::uint32_t size);  // null: it is in none
  void enter(std::uint32_t block);
  void leave(std::uint32_t block);
  std::uint32_t open();

  std::uint64_t capacity_;
  std::uint64_t block_pages_;
  std::uint32_t* links_;
  std::uint64_t pages_ = 0;
  std::vector<Block> blocks_;        // that ever had memory
  std::vector<std::uint32_t> gone_;  // of these, those that have none
  std::uint32_t partial_ = kNone;    // lists of blocks with memory: some pages in use
  std::uint32_t empty_ = kNone;      // none in use
};

}  // namespace kvasir
