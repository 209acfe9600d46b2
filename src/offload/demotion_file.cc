#include "offload/demotion_file.h"

#include <utility>

namespace kvasir {

DemotionFile::DemotionFile(Make make, std::uint64_t capacity)
    : capacity_(capacity), files_(std::move(make), kBuffers, {"demoted pages", "give it more, or demote to memory"}) {}

}  // namespace kvasir
