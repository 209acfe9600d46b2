// kvasir info: what a file holds.
#include <fmt/core.h>

#include <map>

#include "base/status.h"
#include "cli/command.h"
#include "gguf/reader.h"
#include "model/config.h"
#include "model/weights.h"
#include "tensor/dtype.h"

namespace kvasir::cli {
namespace {

constexpr std::size_t kShownElements = 8;

// The first elements of an array of scalars, as JSON.
Json scalar_json(const gguf::Value& value) {
  return std::visit(
      [](const auto& data) -> Json {
        using Data = std::decay_t<decltype(data)>;
        if constexpr (std::is_same_v<Data, gguf::Array>) {
          Json shown = Json::array();
          for (std::size_t i = 0; i < data.strings.size() && i < kShownElements; ++i)
            shown.push_back(printable(data.strings[i], 64));
          return {{"type", gguf::value_type_name(data.type)}, {"count", data.count}, {"first", shown}};
        } else if constexpr (std::is_same_v<Data, std::string_view>) {
          return printable(data, 2000);
        } else {
          return data;
        }
      },
      value.data);
}

std::string value_text(const gguf::Value& value) {
  const Json json = scalar_json(value);
  if (const auto* array = std::get_if<gguf::Array>(&value.data)) {
    std::string out = fmt::format("[{} x {}]", array->count, gguf::value_type_name(array->type));
    for (const Json& element : json["first"]) out += fmt::format(" '{}'", element.get<std::string>());
    return out;
  }
  if (const auto* text = std::get_if<std::string_view>(&value.data)) return printable(*text, 100);
  if (value.type == gguf::ValueType::kBool) return std::get<std::uint64_t>(value.data) != 0 ? "true" : "false";
  return json.dump();
}

std::string type_name(std::uint32_t type) {
  const auto traits = foreign_dtype(type);
  return traits ? std::string(traits->name) : fmt::format("type {}", type);
}

// Whether Kvasir can run it, and if not, why.
std::string verdict(const gguf::File& file) {
  const auto config = read_model_config(file);
  if (!config.ok()) return config.status().message();
  const auto bytes = Weights::plan_bytes(file, *config);
  return bytes.ok() ? "yes" : bytes.status().message();
}

Status info(const std::string& path, bool tensors, bool json) {
  KVASIR_ASSIGN_OR_RETURN(const gguf::File file, gguf::File::open(path));
  std::map<std::string, std::pair<std::size_t, std::uint64_t>> by_type;
  std::uint64_t parameters = 0;
  for (const gguf::Tensor& tensor : file.tensors()) {
    auto& [count, bytes] = by_type[type_name(tensor.type)];
    ++count;
    bytes += tensor.bytes.size();
    parameters += tensor.elements;
  }
  const std::string runs = verdict(file);
  if (json) {
    Json out{{"version", file.version()},   {"size_bytes", file.size_bytes()}, {"tensor_bytes", file.tensor_bytes()},
             {"parameters", parameters},    {"runs", runs == "yes"},           {"why_not", runs == "yes" ? "" : runs},
             {"metadata", Json::object()},  {"tensors", Json::array()}};
    for (const gguf::Entry& entry : file.metadata()) out["metadata"][printable(entry.key, 200)] = scalar_json(entry.value);
    for (const gguf::Tensor& tensor : file.tensors())
      out["tensors"].push_back({{"name", printable(tensor.name, 200)},
                                {"type", type_name(tensor.type)},
                                {"dims", tensor.dims},
                                {"bytes", tensor.bytes.size()}});
    return print_json(out);
  }
  std::string out = fmt::format("{}: GGUF version {}, {}, {} tensors with {} parameters\nRuns here: {}\n\n",
                                printable(path, 200), file.version(), human_bytes(file.size_bytes()),
                                file.tensors().size(), parameters, runs);
  for (const auto& [name, totals] : by_type)
    out += fmt::format("  {:<8} {:>4} tensors {:>12}\n", name, totals.first, human_bytes(totals.second));
  out += "\n";
  for (const gguf::Entry& entry : file.metadata())
    out += fmt::format("  {:<46} {}\n", printable(entry.key, 64), value_text(entry.value));
  if (tensors) {
    out += "\n";
    for (const gguf::Tensor& tensor : file.tensors()) {
      std::string dims;
      for (const std::uint64_t dim : tensor.dims) dims += fmt::format("{}{}", dims.empty() ? "" : " x ", dim);
      out += fmt::format("  {:<46} {:<6} {}\n", printable(tensor.name, 64), type_name(tensor.type), dims);
    }
  }
  return print(out);
}

}  // namespace

void add_info(CLI::App& program, Outcome& outcome) {
  struct Options {
    std::string path;
    bool tensors = false;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("info", "What a GGUF file holds, and whether it runs here");
  command->add_option("model", options->path, "GGUF file")->required()->type_name("FILE");
  command->add_flag("--tensors", options->tensors, "List the tensors too");
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, &outcome] { outcome.status = info(options->path, options->tensors, options->json); });
}

}  // namespace kvasir::cli
