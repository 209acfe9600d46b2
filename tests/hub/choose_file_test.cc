#include "hub/choose_file.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvasir::hub {
namespace {

using Paths = std::vector<std::string>;

// Returns the chosen paths, or the message.
Paths chosen(const Paths& paths, const std::string& quant = "", const std::string& file = "") {
  ModelName name;
  name.repo = "user/repo";
  name.quant = quant;
  name.file = file;
  const Result<Paths> files = choose_files(paths, name);
  return files.ok() ? *files : Paths{files.status().message()};
}

TEST(ChooseFile, QuantizationInAName) {
  for (const auto& [path, quant] :
       std::vector<std::pair<std::string, std::string>>{{"Model-7B-Q4_K_M.gguf", "Q4_K_M"},
                                                        {"model-7b.q5_1.gguf", "Q5_1"},
                                                        {"SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"},
                                                        {"Model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"},
                                                        {"Model-IQ2_XXS.gguf", "IQ2_XXS"},
                                                        {"Model-TQ1_0.gguf", "TQ1_0"},
                                                        {"model-f16.gguf", "F16"},
                                                        {"model.BF16.gguf", "BF16"},
                                                        {"gpt-oss-20b-mxfp4.gguf", "MXFP4"},
                                                        {"model_q8_0.gguf", "Q8_0"},
                                                        {"Q4_K_M/Model-Q4_K_M-00001-of-00003.gguf", "Q4_K_M"},
                                                        {"kvasir-mini-3m-q8_0.gguf", "Q8_0"},
                                                        {"Qwen3-0.6B.gguf", ""},
                                                        {"model.gguf", ""},
                                                        {"Quartz-1B.gguf", ""}})
    EXPECT_EQ(quant_of(path), quant) << path;
}

TEST(ChooseFile, TheUsualChoice) {
  EXPECT_EQ(chosen({"m-F16.gguf", "m-Q8_0.gguf", "m-Q4_K_M.gguf"}), Paths{"m-Q4_K_M.gguf"});
  EXPECT_EQ(chosen({"m-F16.gguf", "m-Q4_0.gguf", "m-Q8_0.gguf"}), Paths{"m-Q8_0.gguf"});
  EXPECT_EQ(chosen({"m-F16.gguf", "m-Q4_0.gguf"}), Paths{"m-F16.gguf"});
  EXPECT_EQ(chosen({"README.md", "m.gguf"}), Paths{"m.gguf"});
  EXPECT_EQ(chosen({"m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf"}), Paths{"m-Q4_K_M.gguf"});
  EXPECT_EQ(chosen({"m-UD-Q4_K_M.gguf", "m-Q8_0.gguf"}), Paths{"m-UD-Q4_K_M.gguf"});
}

TEST(ChooseFile, NeverWhatIsNoModel) {
  const Paths others = {"mmproj-Q4_K_M.gguf", "m-mmproj-Q4_K_M.gguf", "imatrix-Q4_K_M.gguf",  "mtp-Q4_K_M.gguf",
                        "eagle3-Q4_K_M.gguf", "dflash-Q4_K_M.gguf",   "x/dspark-Q4_K_M.gguf", "m-Q4_K_M.safetensors"};
  Paths all = others;
  all.emplace_back("m-Q2_K.gguf");
  EXPECT_EQ(chosen(all), Paths{"m-Q2_K.gguf"});
  EXPECT_EQ(chosen(all, "Q4_K_M"), Paths{"user/repo has no Q4_K_M; there is: Q2_K"});
  EXPECT_EQ(chosen(others),
            Paths{"user/repo has no GGUF file of a model; look for a repository of the same model in GGUF"});
}

TEST(ChooseFile, ByQuantization) {
  const Paths paths = {"m-IQ4_XS.gguf", "m-Q4_K_S.gguf", "m-Q4_K_M.gguf", "m-UD-Q4_K_XL.gguf", "m-BF16.gguf"};
  EXPECT_EQ(chosen(paths, "q4_k_s"), Paths{"m-Q4_K_S.gguf"});
  EXPECT_EQ(chosen(paths, "UD-Q4_K_XL"), Paths{"m-UD-Q4_K_XL.gguf"});
  EXPECT_EQ(chosen(paths, "Q4_K_XL"), Paths{"m-UD-Q4_K_XL.gguf"});
  EXPECT_EQ(chosen(paths, "bf16"), Paths{"m-BF16.gguf"});
  const std::string there = "; there is: IQ4_XS, Q4_K_S, Q4_K_M, UD-Q4_K_XL, BF16";
  for (const std::string quant : {"Q4_XS", "Q4_K", "F16", "K_M", "gguf"})
    EXPECT_EQ(chosen(paths, quant), Paths{"user/repo has no " + quant + there});
  // A name that is no quantization, between separators.
  EXPECT_EQ(chosen({"a.chat.gguf", "a.base.gguf"}, "base"), Paths{"a.base.gguf"});
}

TEST(ChooseFile, ByName) {
  EXPECT_EQ(chosen({"a.gguf", "x/b.gguf"}, "", "x/b.gguf"), Paths{"x/b.gguf"});
  EXPECT_EQ(chosen({"mmproj.gguf", "a.gguf"}, "", "mmproj.gguf"), Paths{"mmproj.gguf"});
  EXPECT_EQ(chosen({"a.gguf", "x/b.gguf"}, "", "b.gguf"),
            Paths{"user/repo has no file 'b.gguf'; there is: a.gguf, x/b.gguf"});
}

TEST(ChooseFile, AllPartsOfASplitModel) {
  const Paths parts = {"x/m-Q4_K_M-00003-of-00003.gguf", "x/m-Q4_K_M-00001-of-00003.gguf",
                       "x/m-Q4_K_M-00002-of-00003.gguf"};
  const Paths ordered = {parts[1], parts[2], parts[0]};
  EXPECT_EQ(chosen(parts), ordered);
  // By the name of another part: that one is opened.
  EXPECT_EQ(chosen(parts, "", parts[0]), (Paths{parts[0], parts[1], parts[2]}));
  EXPECT_EQ(chosen({parts[0], parts[1]}),
            Paths{"user/repo has not all parts of the model: 'x/m-Q4_K_M-00002-of-00003.gguf' is missing"});
  EXPECT_EQ(chosen({"m-00001-of-00001.gguf"}), Paths{"m-00001-of-00001.gguf"});
}

}  // namespace
}  // namespace kvasir::hub
