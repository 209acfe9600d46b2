// Traces as NumPy files: what is read, what is refused and how it is said, and what is written.
#include "replay/npy.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <limits>

#include "replay/trace.h"
#include "replay/trace_file.h"
#include "support/file_size_limit.h"
#include "support/shared_data.h"

namespace kvasir {
namespace {

using test::Folder;
using test::npy_bytes;
using test::npy_dictionary;
using test::trace_bytes;
using test::trace_values;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

Result<AttentionTrace> parse(const std::string& bytes) {
  return AttentionTrace::parse(as_bytes(bytes), "x.npy");
}

// The status of opening and then looking at every weight.
Status status_of(const std::string& bytes) {
  const auto trace = parse(bytes);
  return trace.ok() ? trace->check({}) : trace.status();
}

void expect_refused(const std::string& bytes, StatusCode code, const std::string& part) {
  const Status status = status_of(bytes);
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("'x.npy'"), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
}

void expect_holds(const AttentionTrace& trace, const std::vector<float>& values) {
  const auto tokens = static_cast<std::size_t>(trace.tokens());
  std::vector<float> row(tokens);
  std::size_t at = 0;
  for (int layer = 0; layer < trace.layers(); ++layer)
    for (int head = 0; head < trace.heads(); ++head)
      for (int t = 0; t < trace.tokens(); ++t, at += tokens) {
        trace.read(layer, head, t, row);
        for (std::size_t j = 0; j < tokens; ++j) ASSERT_EQ(row[j], values[at + j]) << layer << head << t << j;
      }
  EXPECT_EQ(at, values.size());
}

TEST(NpyTest, ReadsEveryVersionOfTheHeader) {
  const std::vector<float> values = trace_values(2, 3, 5, test::uneven_weight);
  for (const int major : {1, 2, 3})
    for (const std::size_t spaces : {0, 1, 2, 63}) {  // weights at any address
      SCOPED_TRACE(std::to_string(major) + " " + std::to_string(spaces));
      const std::string bytes = npy_bytes(npy_dictionary("(2, 3, 5, 5)") + std::string(spaces, ' '), values, major);
      const auto trace = parse(bytes);
      ASSERT_TRUE(trace.ok()) << trace.status().message();
      EXPECT_EQ(trace->layers(), 2);
      EXPECT_EQ(trace->heads(), 3);
      EXPECT_EQ(trace->tokens(), 5);
      EXPECT_TRUE(trace->check({}).ok()) << trace->check({}).message();
      expect_holds(*trace, values);
    }
}

TEST(NpyTest, ReadsHeadersThatOthersWrite) {
  const std::vector<float> values = trace_values(1, 1, 2, test::uniform_weight);
  for (const std::string dictionary : {"{'shape':(1,1,2,2),'fortran_order':False,'descr':'<f4'}",
                                       "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (1, 1, 2, 2)}",
                                       "  { 'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( 1,1 , 2 ,2, ) , }"})
    EXPECT_TRUE(status_of(npy_bytes(dictionary, values)).ok()) << status_of(npy_bytes(dictionary, values)).message();
}

TEST(NpyTest, WritesTheHeaderThatNumpyWrites) {
  const std::int64_t shape[] = {1, 2, 48, 48};
  std::string expected("\x93NUMPY\x01\x00v\x00", 10);
  expected += "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 48, 48), }";
  expected.resize(127, ' ');
  EXPECT_EQ(npy_header(shape), expected + '\n');
  const std::int64_t one[] = {7};
  EXPECT_EQ(npy_shape_text(one), "(7,)");
  EXPECT_EQ(npy_header(one).size() % 64, 0u);
  KVASIR_SHARED_OR_SKIP(path, "traces/example.npy");
  std::ifstream in(path, std::ios::binary);
  const std::string example{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(example.substr(0, 128), npy_header(shape));
}

TEST(NpyTest, RefusesWhatIsNoNumpyFile) {
  expect_refused("", StatusCode::kDataLoss, "not a NumPy file");
  expect_refused("GGUF and more", StatusCode::kDataLoss, "not a NumPy file");
  const std::string sound = npy_bytes(npy_dictionary("(1, 1, 1, 1)"), {1});
  ASSERT_TRUE(status_of(sound).ok()) << status_of(sound).message();
  for (std::size_t cut = 1; cut < sound.size() - 4; ++cut)
    expect_refused(sound.substr(0, cut), StatusCode::kDataLoss, "truncated: it ends inside its header");
  for (std::size_t cut = sound.size() - 4; cut < sound.size(); ++cut)
    expect_refused(sound.substr(0, cut), StatusCode::kDataLoss, "truncated: ");
  expect_refused(sound + "!", StatusCode::kDataLoss, "1 byte too many");
  std::string version = sound;
  version[6] = 4;
  expect_refused(version, StatusCode::kUnsupported, "version 4.0");
  version[6] = 0;
  expect_refused(version, StatusCode::kUnsupported, "version 0.0");
  version[6] = 1, version[7] = 1;
  expect_refused(version, StatusCode::kUnsupported, "version 1.1");
  std::string longest = npy_bytes(npy_dictionary("(1, 1, 1, 1)"), {1}, 2);
  longest.replace(8, 4, "\xff\xff\xff\xff");
  expect_refused(longest, StatusCode::kUnsupported, "header of 4294967295 bytes");
}

TEST(NpyTest, RefusesDamagedDictionaries) {
  const std::string sound = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1), }";
  const std::string behind = sound.substr(1);
  for (const std::string& dictionary : std::vector<std::string>{
           "", " ", "{}", "{", "(", "[1, 2]", sound.substr(0, sound.size() - 1), sound + "}", "{" + sound + "}",
           "{, " + behind, "{'more': 1, " + behind, "{'descr': '<f4', " + behind,
           "{descr: '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1)}", "{'descr': '<f4', 'fortran_order': False}",
           "{'descr': '<f4', 'shape': (1, 1, 1, 1)}"})
    expect_refused(npy_bytes(dictionary, {1}), StatusCode::kDataLoss, "is not a dictionary of");
  expect_refused(npy_bytes(npy_dictionary(std::string(500, '(')), {1}), StatusCode::kDataLoss, "...");
  for (const std::string shape : {"1", "[1, 1, 1, 1]", "(1, 1, 1, -1)", "(1, 1, 1, 1.0)", "(1, , 1, 1)", "(1 1, 1, 1)",
                                  "(a, 1, 1, 1)", "(1, 1, 1, 99999999999999999999)", "(1, (1), 1, 1)", "(,)"})
    expect_refused(npy_bytes(npy_dictionary(shape), {1}), StatusCode::kDataLoss, std::string("its shape is ") + shape);
}

TEST(NpyTest, SaysWhatIsThereAndWhatIsNeeded) {
  for (const std::string descr : {"'<f8'", "'>f4'", "'<f2'", "'|u1'", "'<i4'", "'=f4'", "[('a', '<f4'), ('b', '<f4')]"})
    expect_refused(npy_bytes(npy_dictionary("(1, 1, 1, 1)", descr), {1}), StatusCode::kUnsupported,
                   "of type " + descr + "; float32 ('<f4') is needed");
  for (const std::string order : {"True", "1", "None"})
    expect_refused(npy_bytes(npy_dictionary("(1, 1, 1, 1)", "'<f4'", order), {1}), StatusCode::kUnsupported,
                   "fortran_order " + order + "; C order is needed");
  for (const std::string shape :
       {"()", "(4,)", "(2, 2)", "(1, 2, 2)", "(1, 1, 1, 2, 2)", "(1, 1, 4, 1)", "(1, 4, 1, 2)"})
    expect_refused(npy_bytes(npy_dictionary(shape), {1, 0, .5, .5}), StatusCode::kUnsupported,
                   "the shape " + shape + "; attention weights have [layers, heads, T, T]");
  for (const std::string shape : {"(0, 1, 1, 1)", "(1, 0, 1, 1)", "(1, 1, 0, 0)"})
    expect_refused(npy_bytes(npy_dictionary(shape), {}), StatusCode::kUnsupported, "there is nothing in it");
  expect_refused(npy_bytes(npy_dictionary("(1, 1, 2049, 2049)"), {1}), StatusCode::kUnsupported, "at most 2048");
  expect_refused(npy_bytes(npy_dictionary("(1, 1, 2048, 2048)"), {1}), StatusCode::kDataLoss,
                 "4 bytes of weights instead of 16777216");
}

TEST(NpyTest, RefusesSizesThatOverflow) {
  for (const std::string shape :
       {"(9223372036854775807, 1, 1, 1)", "(4294967296, 4294967296, 1, 1)", "(2, 2305843009213693952, 2, 2)",
        "(1, 1, 3037000500, 3037000500)", "(4611686018427387904, 4, 4, 4)"})
    expect_refused(npy_bytes(npy_dictionary(shape), {1}), StatusCode::kDataLoss, "more than a file can hold");
  expect_refused(npy_bytes(npy_dictionary("(0, 9223372036854775807, 9223372036854775807, 9223372036854775807)"), {1}),
                 StatusCode::kUnsupported, "there is nothing in it");
  expect_refused(npy_bytes(npy_dictionary("(2305843009213693951, 1, 1, 1)"), {1}), StatusCode::kDataLoss, "truncated");
}

TEST(NpyTest, RefusesWeightsThatAreNoSoftmax) {
  const std::vector<float> sound = {1, 0, 0, .5, .5, 0, .25, .25, .5};
  const auto with = [&](std::size_t at, float value) {
    std::vector<float> values = sound;
    values[at] = value;
    return npy_bytes(npy_dictionary("(1, 1, 3, 3)"), values);
  };
  ASSERT_TRUE(status_of(with(0, 1)).ok());
  EXPECT_TRUE(status_of(with(1, -0.0F)).ok());
  EXPECT_TRUE(status_of(with(0, 1.005F)).ok()) << "rounding";
  for (const float value : {-.5F, kNan, kInfinity, -kInfinity})
    expect_refused(with(4, value), StatusCode::kDataLoss, "the weight at [0, 0, 1, 1] is ");
  for (const float value : {1e-30F, -1.0F, kNan, kInfinity})
    expect_refused(with(5, value), StatusCode::kDataLoss, "[0, 0, 1, 2] is ");
  expect_refused(with(1, .1F), StatusCode::kDataLoss, "token 0 cannot see a later one");
  expect_refused(with(8, .6F), StatusCode::kDataLoss, "row [0, 0, 2] sum to 1.1;");
  expect_refused(with(0, 0), StatusCode::kDataLoss, "row [0, 0, 0] sum to 0;");

  std::vector<float> later = trace_values(2, 2, 3, test::uniform_weight);
  later.back() = 7;
  expect_refused(npy_bytes(npy_dictionary("(2, 2, 3, 3)"), later), StatusCode::kDataLoss, "row [1, 1, 2]");
}

TEST(TraceTest, CheckCanBeStopped) {
  const std::string bytes = trace_bytes(2, 3, 2, test::uniform_weight);
  const auto trace = parse(bytes);
  ASSERT_TRUE(trace.ok());
  std::vector<std::int64_t> seen;
  const Status status = trace->check([&](std::int64_t done, std::int64_t total) {
    EXPECT_EQ(total, 6);
    seen.push_back(done);
    return done < 3;
  });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_EQ(seen, (std::vector<std::int64_t>{0, 1, 2, 3}));
}

// The arrays behind the weights, of 2 layers, 2 query heads, 1 KV head, 3 tokens and 4 dimensions.
std::string kv_arrays(const std::string& queries = "(2, 2, 3, 4)") {
  return npy_bytes(npy_dictionary("(2, 1, 3, 4)"), std::vector<float>(24, 0.5F)) +
         npy_bytes(npy_dictionary("(2, 1, 3, 4)"), std::vector<float>(24, 0.25F)) +
         npy_bytes(npy_dictionary("(2, 1, 3, 1)"), std::vector<float>(6, 2.0F)) +
         npy_bytes(npy_dictionary(queries), std::vector<float>(48, 0.125F));
}

TEST(TraceTest, KeysValuesAndQueriesFollowTheWeights) {
  const std::string weights = trace_bytes(2, 2, 3, test::uniform_weight);
  EXPECT_FALSE(parse(weights)->shape().has_kv());
  const std::string bytes = weights + kv_arrays();
  const auto trace = parse(bytes);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_TRUE(trace->check({}).ok());
  EXPECT_EQ(trace->shape().kv_heads, 1);
  EXPECT_EQ(trace->shape().head_dim, 4);
  std::vector<float> row(4);
  trace->read(TraceArray::kValues, 1, 0, 2, row);
  EXPECT_EQ(row, std::vector<float>(4, 0.25F));
  trace->read(TraceArray::kQueries, 1, 1, 2, row);
  EXPECT_EQ(row, std::vector<float>(4, 0.125F));
  for (std::size_t cut = 1; cut < kv_arrays().size(); cut += 7) {
    const std::string shorter = bytes.substr(0, bytes.size() - cut);
    EXPECT_EQ(parse(shorter).status().code(), StatusCode::kDataLoss) << cut;
  }
  const std::string longer = bytes + "x";
  EXPECT_EQ(parse(longer).status().code(), StatusCode::kDataLoss);
  const std::string other = weights + kv_arrays("(2, 2, 4, 3)");
  EXPECT_EQ(parse(other).status().code(), StatusCode::kUnsupported);
  std::string infinite = bytes;
  infinite.replace(infinite.size() - 4, 4, std::string("\0\0\x80\x7f", 4));
  const auto damaged = parse(infinite);
  ASSERT_TRUE(damaged.ok());
  EXPECT_EQ(damaged->check({}).code(), StatusCode::kDataLoss);
}

TEST(TraceTest, OpenErrors) {
  const Folder folder;
  EXPECT_EQ(AttentionTrace::open(folder.path("none")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(AttentionTrace::open(folder.path()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(AttentionTrace::open("/dev/zero").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(AttentionTrace::open(folder.make("empty", "")).status().code(), StatusCode::kDataLoss);
}

TEST(TraceWriterTest, WhatIsWrittenIsRead) {
  const Folder folder;
  const std::vector<float> values = trace_values(3, 2, 7, test::uneven_weight);
  auto writer = AttentionTraceWriter::open(folder.path("a.npy"), {3, 2, 7});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  AttentionTraceWriter moved = std::move(*writer);
  for (int layer = 2; layer >= 0; --layer)  // any order
    for (int row = 0; row < 7; ++row)
      for (const int head : {1, 0}) {
        std::vector<float> weights;
        for (int j = 0; j <= row; ++j) weights.push_back(test::uneven_weight(layer, head, row, j));
        ASSERT_TRUE(moved.write_row(layer, head, row, weights).ok());
        EXPECT_FALSE(std::filesystem::exists(folder.path("a.npy"))) << "not before it is whole";
      }
  ASSERT_TRUE(moved.finish().ok());
  EXPECT_EQ(folder.files(), 1);
  const auto trace = AttentionTrace::open(folder.path("a.npy"));
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_TRUE(trace->check({}).ok()) << trace->check({}).message();
  expect_holds(*trace, values);
  // What another hand writes, but for the padding of the header.
  const std::string content = folder.content("a.npy");
  const std::string other = npy_bytes(npy_dictionary("(3, 2, 7, 7)"), values);
  const std::size_t bytes = values.size() * sizeof(float);
  EXPECT_EQ(content.substr(content.size() - bytes), other.substr(other.size() - bytes));
}

TEST(TraceWriterTest, TakesSpaceOnlyForWhatIsWritten) {
  const Folder folder;
  auto writer = AttentionTraceWriter::open(folder.path("a.npy"), {6, 6, 2048});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  ASSERT_TRUE(writer->write_row(5, 5, 0, std::vector<float>{1}).ok());
  ASSERT_TRUE(writer->finish().ok());
  struct stat st {};
  ASSERT_EQ(::stat(folder.path("a.npy").c_str(), &st), 0);
  EXPECT_EQ(st.st_size, 128 + 6LL * 6 * 2048 * 2048 * 4);
  EXPECT_LT(st.st_blocks * 512, 1 << 20);
  const auto trace = AttentionTrace::open(folder.path("a.npy"));
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_EQ(trace->check({}).code(), StatusCode::kDataLoss) << "rows are missing";
}

TEST(TraceWriterTest, LeavesNothingBehindUnlessFinished) {
  const Folder folder;
  folder.make("a.npy", "precious");
  {
    auto writer = AttentionTraceWriter::open(folder.path("a.npy"), {1, 1, 2});
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->write_row(0, 0, 0, std::vector<float>{1}).ok());
    EXPECT_EQ(folder.files(), 2);
  }
  EXPECT_EQ(folder.content("a.npy"), "precious");
  EXPECT_EQ(folder.files(), 1);
}

TEST(TraceWriterTest, Errors) {
  const Folder folder;
  folder.make("file", "x");
  const auto code = [&](const std::string& path, std::int64_t layers, std::int64_t heads, std::int64_t tokens) {
    const auto writer = AttentionTraceWriter::open(path, {layers, heads, tokens});
    EXPECT_FALSE(writer.status().message().empty());
    return writer.status().code();
  };
  const std::string path = folder.path("a.npy");
  EXPECT_EQ(code(path, 0, 1, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(path, 1, -1, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(path, 1, 1, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(path, 1, 1, 2049), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(path, std::int64_t{1} << 40, std::int64_t{1} << 40, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(folder.path("none/a.npy"), 1, 1, 1), StatusCode::kNotFound);
  EXPECT_EQ(code(folder.path("file/a.npy"), 1, 1, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(folder.path(), 1, 1, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("/dev/null", 1, 1, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(folder.files(), 1);
}

TEST(TraceWriterTest, NoRoomIsOneLineAndKeepsTheOldFile) {
  const Folder folder;
  folder.make("a.npy", "precious");
  {
    test::FileSizeLimit limit(4096);
    const auto writer = AttentionTraceWriter::open(folder.path("a.npy"), {1, 1, 100});
    EXPECT_EQ(writer.status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(writer.status().message().find(folder.path("a.npy")), std::string::npos) << writer.status().message();
  }
  EXPECT_EQ(folder.files(), 1);
  auto writer = AttentionTraceWriter::open(folder.path("a.npy"), {1, 1, 100});
  ASSERT_TRUE(writer.ok());
  {
    test::FileSizeLimit limit(4096);  // the disk fills up later
    const Status status = writer->write_row(0, 0, 99, std::vector<float>(100, .01F));
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_NE(status.message().find(folder.path("a.npy")), std::string::npos) << status.message();
  }
  writer = Status();  // gone without finish()
  EXPECT_EQ(folder.content("a.npy"), "precious");
  EXPECT_EQ(folder.files(), 1);
}

}  // namespace
}  // namespace kvasir
