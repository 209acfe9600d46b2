// What LFM2 and LFM2 with experts have in common.
#pragma once

#include "model/family.h"

namespace kvasir {

// Gives the layers without KV heads a short convolution.
Status read_short_convolutions(Keys& keys, ModelConfig* model);

}  // namespace kvasir
