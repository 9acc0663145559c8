// The driver's side of a lease, with single entry points of the simulated driver made to fail.
#include "client/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/client/fake_daemon.h"

namespace gpumem::client {
namespace {

using client_test::Machine;

constexpr std::uint64_t kChunk = client_test::FakeDaemon::kChunkBytes;

// What the failing entry points do; they are plain functions, so it is global.
int calls_until_failure = -1;
CUresult failure = CUDA_SUCCESS;
int synchronised = 0;
int unmaps = 0;
CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
CUstreamCaptureMode mode_of_call = CU_STREAM_CAPTURE_MODE_GLOBAL;
CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
CUresult capture_result = CUDA_SUCCESS;

bool FailsNow() { return calls_until_failure >= 0 && calls_until_failure-- == 0; }
CUresult Unmap(CUdeviceptr address, size_t bytes) {
  ++unmaps;
  return FailsNow() ? failure : Machine::Get().driver->MemUnmap(address, bytes);
}
CUresult Release(CUmemGenericAllocationHandle handle) {
  return FailsNow() ? failure : Machine::Get().driver->MemRelease(handle);
}
CUresult SetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* desc, size_t count) {
  return FailsNow() ? failure : Machine::Get().driver->MemSetAccess(address, bytes, desc, count);
}
CUresult IsCapturing(CUstream, CUstreamCaptureStatus* status) {
  *status = capture;
  return capture_result;
}
CUresult ExchangeMode(CUstreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}
CUresult Synchronize(CUstream) {
  mode_of_call = thread_mode;
  ++synchronised;
  return failure;
}

class MemoryTest : public testing::Test {
 protected:
  MemoryTest() : physical_before_(Machine::Get().PhysicalBytes()) {
    std::string error;
    driver_ = cuda::Driver::Load(Machine::Get().library.c_str(), &error);
    driver_->Init(0);
    calls_until_failure = -1;
    failure = CUDA_SUCCESS;
    synchronised = 0;
    capture = CU_STREAM_CAPTURE_STATUS_NONE;
    capture_result = CUDA_SUCCESS;
  }
  Memory Imported(int count) {
    Memory memory;
    const CUdevice device = Machine::Get().devices[0].ordinal;
    EXPECT_TRUE(Memory::Make(driver_.get(), std::vector<Memory::Place>(count, {device, kChunk}), &memory).ok());
    for (int i = 0; i < count; ++i) {
      cuda::PhysicalHandle handle;
      UniqueFd fd;
      EXPECT_EQ(cuda::PhysicalHandle::Create(*driver_, device, kChunk, true, &handle), CUDA_SUCCESS);
      EXPECT_EQ(handle.Export(&fd), CUDA_SUCCESS);
      EXPECT_TRUE(memory.Import(i, fd.get()).ok());
    }
    return memory;
  }
  std::uint64_t Physical() const { return Machine::Get().PhysicalBytes() - physical_before_; }

  std::unique_ptr<cuda::Driver> driver_;
  const std::uint64_t physical_before_;
  CUdeviceptr address_ = 0;
};

TEST_F(MemoryTest, AccessThatIsRefusedForOneChunkUndoesAll) {
  driver_->MemSetAccess = SetAccess;
  for (int k = 0; k < 3; ++k) {
    Memory memory = Imported(3);
    calls_until_failure = k;
    failure = CUDA_ERROR_INVALID_DEVICE;
    const Status status = memory.Map(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &address_);
    EXPECT_EQ(status.reason, Reason::CUDA);
    EXPECT_EQ(status.cuda_error, CUDA_ERROR_INVALID_DEVICE);
    EXPECT_FALSE(memory.reserved());
    EXPECT_EQ(address_, 0u);
    EXPECT_TRUE(memory.Map(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &address_).ok());
    address_ = 0;
  }
  EXPECT_EQ(Physical(), 0u);
}

TEST_F(MemoryTest, AfterAFatalErrorNothingIsUndone) {
  {
    driver_->MemSetAccess = SetAccess;
    driver_->MemUnmap = Unmap;
    Memory memory = Imported(2);
    calls_until_failure = 1;
    failure = CUDA_ERROR_ILLEGAL_ADDRESS;
    unmaps = 0;
    EXPECT_EQ(memory.Map(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &address_).reason, Reason::CUDA_FATAL);
    EXPECT_EQ(unmaps, 0);
    calls_until_failure = -1;
  }
  EXPECT_EQ(Physical(), 0u);
}

TEST_F(MemoryTest, AnUnmapThatFailsCanBeTriedAgain) {
  driver_->MemUnmap = Unmap;
  Memory memory = Imported(3);
  ASSERT_TRUE(memory.Map(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &address_).ok());
  calls_until_failure = 1;
  failure = CUDA_ERROR_INVALID_VALUE;
  EXPECT_EQ(memory.Unmap().reason, Reason::CUDA);
  EXPECT_TRUE(memory.reserved());
  EXPECT_TRUE(memory.Unmap().ok());
  EXPECT_FALSE(memory.reserved());
}

TEST_F(MemoryTest, AHandleThatIsNotTakenBackIsUnknown) {
  driver_->MemRelease = Release;
  Memory memory = Imported(3);
  calls_until_failure = 1;
  failure = CUDA_ERROR_INVALID_VALUE;
  EXPECT_THAT(memory.LetGo(), testing::ElementsAre(Outcome::kUnmapped, Outcome::kUnknown, Outcome::kUnmapped));
  EXPECT_EQ(Physical(), kChunk);
}

TEST_F(MemoryTest, WhatWasNeverImportedIsUnmapped) {
  Memory memory;
  ASSERT_TRUE(Memory::Make(driver_.get(), {{0, kChunk}, {0, kChunk}}, &memory).ok());
  EXPECT_THAT(memory.LetGo(), testing::Each(Outcome::kUnmapped));
}

TEST_F(MemoryTest, AbandonedMemoryStays) {
  {
    Memory memory = Imported(2);
    ASSERT_TRUE(memory.Map(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &address_).ok());
    memory.Abandon();
  }
  EXPECT_EQ(Physical(), 2 * kChunk);
  // Its values point to the driver for the rest of the process.
  static auto* const kept = new std::unique_ptr<cuda::Driver>(std::move(driver_));
  (void)kept;
}

TEST_F(MemoryTest, SizesThatCannotBe) {
  Memory memory;
  EXPECT_EQ(Memory::Make(driver_.get(), {{0, kChunk}, {0, ~std::uint64_t{0}}}, &memory).reason, Reason::PROTOCOL);
  EXPECT_EQ(Memory::Make(driver_.get(), {{0, 0}}, &memory).reason, Reason::PROTOCOL);
}

TEST_F(MemoryTest, ACapturingStreamIsNotWaitedFor) {
  driver_->StreamIsCapturing = IsCapturing;
  driver_->StreamSynchronize = Synchronize;
  EXPECT_TRUE(WaitForStreams(*driver_, {nullptr, nullptr}).ok());
  EXPECT_EQ(synchronised, 2);
  for (const auto status : {CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_INVALIDATED}) {
    capture = status;
    EXPECT_EQ(WaitForStreams(*driver_, {nullptr}).reason, Reason::CAPTURING);
  }
  capture = CU_STREAM_CAPTURE_STATUS_NONE;
  capture_result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  EXPECT_EQ(WaitForStreams(*driver_, {nullptr}).reason, Reason::CAPTURING);
  EXPECT_EQ(synchronised, 2);
}

TEST_F(MemoryTest, AnErrorWhileWaiting) {
  driver_->StreamIsCapturing = IsCapturing;
  capture = CU_STREAM_CAPTURE_STATUS_NONE;
  capture_result = CUDA_SUCCESS;
  driver_->StreamSynchronize = Synchronize;
  failure = CUDA_ERROR_INVALID_HANDLE;
  EXPECT_EQ(WaitForStreams(*driver_, {nullptr}).reason, Reason::CUDA);
  failure = CUDA_ERROR_ILLEGAL_ADDRESS;
  const Status status = WaitForStreams(*driver_, {nullptr});
  EXPECT_EQ(status.reason, Reason::CUDA_FATAL);
  EXPECT_EQ(status.cuda_error, CUDA_ERROR_ILLEGAL_ADDRESS);
  failure = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  EXPECT_EQ(WaitForStreams(*driver_, {nullptr}).reason, Reason::CAPTURING);
  failure = CUDA_ERROR_ECC_UNCORRECTABLE;
  EXPECT_EQ(WaitForStreams(*driver_, {nullptr}).reason, Reason::CUDA_FATAL);
  failure = CUDA_ERROR_UNKNOWN;  // may come from a bad descriptor alone
  EXPECT_EQ(WaitForStreams(*driver_, {nullptr}).reason, Reason::CUDA);
}

TEST_F(MemoryTest, ACaptureOfAnotherStreamIsNotDisturbed) {
  driver_->StreamIsCapturing = IsCapturing;
  driver_->StreamSynchronize = Synchronize;
  driver_->ThreadExchangeStreamCaptureMode = ExchangeMode;
  thread_mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  EXPECT_TRUE(WaitForStreams(*driver_, {nullptr}).ok());
  EXPECT_EQ(mode_of_call, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(thread_mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) << "the caller's own is put back";
}

}  // namespace
}  // namespace gpumem::client
