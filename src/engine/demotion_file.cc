#include "engine/demotion_file.h"

#include "base/status.h"

namespace kvasir {

std::uint64_t DemotionFile::used() const {
  std::uint64_t sum = 0;
  for (const auto& [bytes, file] : files_) sum += file->used();
  return sum;
}

Result<DemotionFile::Room> DemotionFile::reserve(std::size_t page_bytes, std::size_t pages) {
  const std::uint64_t more = std::uint64_t{page_bytes} * pages;
  const std::uint64_t used = this->used();
  if (more > capacity_ - std::min(used, capacity_))
    return exhausted(
               "the file for demoted pages may have {} bytes, {} are in use and {} more are needed; give it more, or "
               "demote to memory",
               capacity_, used, more)
        .about({"demote_size"});
  std::unique_ptr<SpillFile>& file = files_[page_bytes];
  if (file == nullptr) {
    KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<AsyncFile> made, make_());
    KVASIR_ASSIGN_OR_RETURN(file, SpillFile::create(std::move(made), capacity_, {page_bytes, kBuffers}));
  }
  std::shared_ptr<SpilledParts> parts = file->reserve(pages);
  if (parts == nullptr)
    return exhausted("the file for demoted pages is full; give it more, or demote to memory").about({"demote_size"});
  return Room{file.get(), std::move(parts)};
}

}  // namespace kvasir
