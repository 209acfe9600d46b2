#include "server/threads/spare_memory.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

namespace kvasir::server {
namespace {

struct Freed {
  void operator()(void* block) const { std::free(block); }
};
using Block = std::unique_ptr<void, Freed>;

std::atomic<void*> spare = nullptr;

[[noreturn]] void give_up() {
  Block(spare.exchange(nullptr)).reset();
  throw std::bad_alloc();  // a second try would use up what destructors need
}

}  // namespace

void keep_spare_memory() {
  std::set_new_handler(give_up);
  if (spare.load() != nullptr) return;
  Block block(std::malloc(kSpareMemory));
  void* none = nullptr;
  if (spare.compare_exchange_strong(none, block.get())) static_cast<void>(block.release());
}

}  // namespace kvasir::server
