#include "backend/cpu/kernels/amx/tile_attention.h"
#include "backend/cpu/kernels/generic.h"

namespace kvasir::amx {
namespace {

template <KvType kType>
void attend_type(const AttentionPartial& partial, const AttentionState& state) {
  switch (partial.slots) {
    case 16: return TileAttention<kType, 1>(partial, state).attend();
    case 32: return TileAttention<kType, 2>(partial, state).attend();
    default: return TileAttention<kType, 4>(partial, state).attend();
  }
}

}  // namespace

void attend(const AttentionPartial& partial, const AttentionState& state) {
  if (partial.head_dim % 16 != 0) return generic_kernels().attend(partial, state);
  attend_runs(partial, [&](const AttentionPartial& part) {
    const PageFormat& format = **part.formats;
    if (format.key != format.value || part.softcap != 0 || part.biases != nullptr)
      return avx512_kernels()->attend(part, state);
    switch (format.key) {
      case KvType::kF16: return attend_type<KvType::kF16>(part, state);
      case KvType::kBF16: return attend_type<KvType::kBF16>(part, state);
      default: return avx512_kernels()->attend(part, state);
    }
  });
}

void attend_gathered(const AttentionPartial& partial, const GatheredEntry* entries, const AttentionState& state) {
  generic::attend_placed(partial, entries, state, attend);
}

}  // namespace kvasir::amx
