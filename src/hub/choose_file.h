// Chooses which file of a repository or a folder is the model.
// Thread-safety: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model_name.h"
#include "kvasir/status.h"

namespace kvasir::hub {

// Returns the quantization in a file's name, in upper case: "Q4_K_M", "IQ2_XS", "UD-Q4_K_XL" or "BF16"; "" if none.
std::string quant_of(std::string_view path);

// Returns whether a name is that of a model's weights: *.gguf, but no projector, importance matrix or draft head.
bool is_weights_name(std::string_view path);

// Returns the text with ASCII letters in upper case, as quant_of writes quantizations.
std::string upper(std::string_view text);

// Chooses by name.file or name.quant, without these Q4_K_M, else Q8_0, else the first path. Returns the file to open,
// followed by the other parts of a split model. Errors: kNotFound, with the choices or the missing part.
Result<std::vector<std::string>> choose_files(std::span<const std::string> paths, const ModelName& name);

// Returns the file of a folder that holds one model. Errors: kInvalidArgument if it holds none or several, which are
// listed; kIo.
Result<std::string> model_in_folder(const std::string& folder);

}  // namespace kvasir::hub
