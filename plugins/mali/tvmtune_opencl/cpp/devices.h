// The devices of this process, the timing of their kernels, and TVM's device API for them.
//
// OpenCL is initialized on first use: servers fork after loading the library, and most drivers do
// not survive a fork.
#pragma once

#include <pthread.h>
#include <tvm/ffi/function.h>
#include <tvm/runtime/device_api.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "driver.h"

namespace tvmtune_opencl {

namespace ffi = tvm::ffi;

// Set when the driver must no longer be called: the parent process initialized it, or this process
// is exiting and the driver has cleaned up.
inline std::atomic<bool> forked{false};
inline std::atomic<bool> ending{false};
inline std::atomic<bool> created{false};  // the only Runtime

struct ClDevice {
  int index;
  cl_platform_id platform;
  cl_device_id id;
  cl_bitfield type;
  std::string name;
  std::string platform_name;
  cl_context context = nullptr;
  cl_command_queue queue = nullptr;
  cl_command_queue timed_queue = nullptr;  // separate: profiling slows some drivers down
  std::once_flag opened;

  std::string Label() const { return "opencl:" + std::to_string(index) + " (" + name + ")"; }
};

struct Buffer {
  cl_mem memory;
  ClDevice* device;
};

class Runtime {
 public:
  // Never destroyed: buffers and kernels may outlive every static object.
  static Runtime& Get() {
    static Runtime* runtime = new Runtime();
    return *runtime;
  }

  // Waits for all kernels, if any device was used.
  static void FinishAll() {
    if (!created || forked) return;
    Runtime& self = Get();
    for (auto& device : self.devices_) {
      if (device->queue != nullptr) self.driver_.clFinish(device->queue);
      if (device->timed_queue != nullptr) self.driver_.clFinish(device->timed_queue);
    }
  }

  // Whether the driver may still be called to release objects.
  static bool Usable() { return !forked && !ending; }

  const Driver& driver() const { return driver_; }
  const std::string& problem() const { return problem_; }
  size_t size() const { return forked ? 0 : devices_.size(); }
  ClDevice& Info(size_t index) { return *devices_[index]; }

  ClDevice& Device(int index) {
    if (!problem_.empty()) TVM_FFI_THROW(RuntimeError) << problem_;
    if (forked) {
      TVM_FFI_THROW(RuntimeError) << "OpenCL was in use before this process was forked, and drivers "
                                     "do not survive that: use it first in the child";
    }
    if (index < 0 || index >= static_cast<int>(devices_.size())) {
      TVM_FFI_THROW(RuntimeError) << "there is no opencl:" << index << ": " << devices_.size()
                                  << " OpenCL device(s) found";
    }
    ClDevice& device = *devices_[index];
    std::call_once(device.opened, [&] { Open(device); });
    return device;
  }

  void Check(cl_int status, const char* what) const {
    if (status != CL_SUCCESS) {
      TVM_FFI_THROW(RuntimeError) << what << " failed: " << ErrorName(status);
    }
  }

  void Finish(ClDevice& device) const {
    Check(driver_.clFinish(device.queue), "clFinish");
    Check(driver_.clFinish(device.timed_queue), "clFinish");
  }

  std::string Text(cl_device_id device, cl_uint key) const {
    size_t size = 0;
    if (driver_.clGetDeviceInfo(device, key, 0, nullptr, &size) != CL_SUCCESS) return "";
    std::string text(size, 0);
    if (driver_.clGetDeviceInfo(device, key, size, &text[0], nullptr) != CL_SUCCESS) return "";
    return text.substr(0, text.find('\0'));
  }

  template <typename T>
  T Number(cl_device_id device, cl_uint key) const {
    T value{};
    Check(driver_.clGetDeviceInfo(device, key, sizeof(T), &value, nullptr), "clGetDeviceInfo");
    return value;
  }

 private:
  Runtime() {
    std::string found;
    for (const std::string& path : DriverPaths()) {
      std::string wrong = driver_.Open(path);
      if (wrong.empty()) wrong = Enumerate();
      if (!devices_.empty()) break;
      // Of the default paths, report only those that exist.
      if (wrong.find("No such file") == std::string::npos || DriverPaths().size() == 1) {
        found += (found.empty() ? "" : "; ") + wrong;
      }
    }
    if (devices_.empty()) {
      problem_ = "no OpenCL device: " + (found.empty() ? "no driver is installed" : found) +
                 ". Install the driver of the GPU's vendor, or name its library in "
                 "TVMTUNE_OPENCL_LIBRARY.";
    } else {
      Select();
    }
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
    created = true;
    // Registered after the driver was loaded, so that it runs before the driver's own cleanup. Not so
    // for what the driver creates later, such as the compiler of PoCL, which compiles a kernel when it
    // first runs: programs in Python finish earlier (tvmtune_opencl_finish).
    std::atexit([] {
      FinishAll();
      ending = true;
    });
  }

  std::string Enumerate() {
    cl_uint count = 0;
    cl_int status = driver_.clGetPlatformIDs(0, nullptr, &count);
    if (status != CL_SUCCESS) return driver_.path + " reports " + ErrorName(status);
    std::vector<cl_platform_id> platforms(count);
    if (count != 0) status = driver_.clGetPlatformIDs(count, platforms.data(), nullptr);
    if (status != CL_SUCCESS) return driver_.path + " reports " + ErrorName(status);
    status = -1;  // CL_DEVICE_NOT_FOUND
    for (cl_platform_id platform : platforms) {
      char name[256] = {0};
      driver_.clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof(name) - 1, name, nullptr);
      cl_int here = driver_.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count);
      std::vector<cl_device_id> ids(here == CL_SUCCESS ? count : 0);
      if (!ids.empty()) {
        here = driver_.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, ids.data(), nullptr);
      }
      if (here != CL_SUCCESS) {
        status = here;
        continue;
      }
      for (cl_device_id id : ids) {
        auto device = std::make_unique<ClDevice>();
        device->platform = platform;
        device->id = id;
        device->type = Number<cl_bitfield>(id, CL_DEVICE_TYPE);
        device->name = Text(id, CL_DEVICE_NAME);
        device->platform_name = name;
        devices_.push_back(std::move(device));
      }
    }
    auto rank = [](const std::unique_ptr<ClDevice>& device) {
      if (device->type & CL_DEVICE_TYPE_GPU) return 0;
      return device->type & CL_DEVICE_TYPE_ACCELERATOR ? 1 : 2;
    };
    std::stable_sort(devices_.begin(), devices_.end(),
                     [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
    Enumerated();
    return devices_.empty() ? driver_.path + " reports " + ErrorName(status) : "";
  }

  void Enumerated() {
    for (size_t i = 0; i < devices_.size(); ++i) devices_[i]->index = static_cast<int>(i);
  }

  // TVMTUNE_OPENCL_DEVICE: a device's number, or part of its name or its platform's.
  void Select() {
    const char* variable = std::getenv("TVMTUNE_OPENCL_DEVICE");
    if (variable == nullptr || *variable == 0) return;
    auto lower = [](std::string text) {
      std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
        return static_cast<char>(std::tolower(c));
      });
      return text;
    };
    const std::string wanted = lower(variable);
    const bool number = wanted.find_first_not_of("0123456789") == std::string::npos;
    std::vector<std::unique_ptr<ClDevice>> chosen;
    std::string all;
    for (auto& device : devices_) {
      all += (all.empty() ? "" : ", ") + std::to_string(device->index) + ": " + device->name +
             " (" + device->platform_name + ")";
      if (number ? std::to_string(device->index) == wanted
                 : lower(device->name + "\n" + device->platform_name).find(wanted) !=
                       std::string::npos) {
        chosen.push_back(std::move(device));
      }
    }
    if (chosen.empty()) {
      problem_ = "no OpenCL device: TVMTUNE_OPENCL_DEVICE is '" + std::string(variable) +
                 "', and the devices are " + all;
    }
    devices_ = std::move(chosen);
    Enumerated();
  }

  // One context per device: platforms cannot share one.
  void Open(ClDevice& device) {
    cl_int status = CL_SUCCESS;
    device.context = driver_.clCreateContext(nullptr, 1, &device.id, nullptr, nullptr, &status);
    Check(status, "clCreateContext");
    cl_command_queue plain = driver_.clCreateCommandQueue(device.context, device.id, 0, &status);
    Check(status, "clCreateCommandQueue");
    device.timed_queue = driver_.clCreateCommandQueue(device.context, device.id,
                                                      CL_QUEUE_PROFILING_ENABLE, &status);
    Check(status, "clCreateCommandQueue");
    device.queue = plain;
  }

  Driver driver_;
  std::string problem_;
  std::vector<std::unique_ptr<ClDevice>> devices_;
};

// Device time of one thread's kernels on one device, recorded while that thread has a timer open.
class KernelTimes {
 public:
  static const std::shared_ptr<KernelTimes>& Of(const ClDevice& device) {
    thread_local std::map<int, std::shared_ptr<KernelTimes>> by_device;
    auto& times = by_device[device.index];
    if (times == nullptr) times = std::make_shared<KernelTimes>();
    return times;
  }

  ~KernelTimes() { ReleaseEvents(); }

  bool open() const { return timers_ > 0; }
  void Open() { ++timers_; }
  void Close() {
    if (--timers_ == 0) ReleaseEvents();
  }

  void Add(cl_event event) {
    events_.push_back(event);
    // A timed run may have a million launches: do not keep all their events.
    if (events_.size() >= 1024) Collect();
  }

  uint64_t launches() const { return launches_; }

  // Waits for all launches so far; returns their total nanoseconds on the device.
  uint64_t Collect() {
    Runtime& runtime = Runtime::Get();
    const Driver& cl = runtime.driver();
    if (events_.empty()) return nanos_;
    runtime.Check(cl.clWaitForEvents(static_cast<cl_uint>(events_.size()), events_.data()),
                  "clWaitForEvents");
    for (cl_event event : events_) {
      cl_ulong start = 0, end = 0;
      runtime.Check(cl.clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_START, sizeof(start),
                                               &start, nullptr),
                    "clGetEventProfilingInfo");
      runtime.Check(cl.clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof(end), &end,
                                               nullptr),
                    "clGetEventProfilingInfo");
      if (end > start) nanos_ += end - start;
    }
    launches_ += events_.size();
    ReleaseEvents();
    return nanos_;
  }

 private:
  void ReleaseEvents() {
    if (Runtime::Usable()) {
      for (cl_event event : events_) Runtime::Get().driver().clReleaseEvent(event);
    }
    events_.clear();
  }

  int timers_ = 0;
  uint64_t nanos_ = 0;
  uint64_t launches_ = 0;
  std::vector<cl_event> events_;
};

// The queue that this thread uses on a device.
inline cl_command_queue QueueOf(const ClDevice& device) {
  return KernelTimes::Of(device)->open() ? device.timed_queue : device.queue;
}

class OpenCLDeviceAPI final : public tvm::runtime::DeviceAPI {
 public:
  using DeviceAPI::AllocDataSpace;
  using DeviceAPI::CopyDataFromTo;

  static OpenCLDeviceAPI* Get() {
    static OpenCLDeviceAPI* api = new OpenCLDeviceAPI();
    return api;
  }

  // The device for kernels that take no buffer.
  static int& Current() {
    thread_local int current = 0;
    return current;
  }

  void SetDevice(DLDevice dev) final { Current() = dev.device_id; }

  void GetAttr(DLDevice dev, tvm::runtime::DeviceAttrKind kind, ffi::Any* rv) final {
    namespace rt = tvm::runtime;
    Runtime& runtime = Runtime::Get();
    if (kind == rt::kExist) {
      *rv = static_cast<int64_t>(dev.device_id >= 0 &&
                                 dev.device_id < static_cast<int>(runtime.size()));
      return;
    }
    cl_device_id id = runtime.Device(dev.device_id).id;
    auto number = [&](uint64_t value) { *rv = static_cast<int64_t>(value); };
    switch (kind) {
      case rt::kMaxThreadsPerBlock:
        return number(runtime.Number<size_t>(id, CL_DEVICE_MAX_WORK_GROUP_SIZE));
      case rt::kWarpSize:
        return number(1);
      case rt::kMaxSharedMemoryPerBlock:
        return number(runtime.Number<cl_ulong>(id, CL_DEVICE_LOCAL_MEM_SIZE));
      case rt::kComputeVersion: {
        // "OpenCL 1.2 v1.r18p0..."
        std::istringstream words(runtime.Text(id, CL_DEVICE_VERSION));
        std::string version;
        words >> version >> version;
        *rv = ffi::String(version);
        return;
      }
      case rt::kDeviceName:
        *rv = ffi::String(runtime.Text(id, CL_DEVICE_NAME));
        return;
      case rt::kMaxClockRate:  // kHz
        return number(uint64_t{1000} * runtime.Number<cl_uint>(id, CL_DEVICE_MAX_CLOCK_FREQUENCY));
      case rt::kMultiProcessorCount:
        return number(runtime.Number<cl_uint>(id, CL_DEVICE_MAX_COMPUTE_UNITS));
      case rt::kMaxThreadDimensions: {
        struct Sizes {
          size_t of[3];
        };
        Sizes sizes = runtime.Number<Sizes>(id, CL_DEVICE_MAX_WORK_ITEM_SIZES);
        std::ostringstream text;
        text << "[" << sizes.of[0] << ", " << sizes.of[1] << ", " << sizes.of[2] << "]";
        *rv = ffi::String(text.str());
        return;
      }
      case rt::kApiVersion:
        return number(120);
      case rt::kDriverVersion:
        *rv = ffi::String(runtime.Text(id, CL_DRIVER_VERSION));
        return;
      case rt::kL2CacheSizeBytes:
        return number(runtime.Number<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE));
      case rt::kTotalGlobalMemory:
        return number(runtime.Number<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_SIZE));
      default:
        return;  // None: OpenCL does not report it
    }
  }

  void* AllocDataSpace(DLDevice dev, size_t nbytes, size_t, DLDataType) final {
    Runtime& runtime = Runtime::Get();
    ClDevice& device = runtime.Device(dev.device_id);
    cl_int status = CL_SUCCESS;
    // OpenCL has no empty buffers.
    cl_mem memory = runtime.driver().clCreateBuffer(device.context, CL_MEM_READ_WRITE,
                                                    std::max<size_t>(nbytes, 1), nullptr, &status);
    if (status != CL_SUCCESS) {
      TVM_FFI_THROW(MemoryError)
          << "no buffer of " << nbytes << " bytes on " << device.Label() << ": "
          << ErrorName(status) << " (it allows "
          << runtime.Number<cl_ulong>(device.id, CL_DEVICE_MAX_MEM_ALLOC_SIZE)
          << " in one buffer and has "
          << runtime.Number<cl_ulong>(device.id, CL_DEVICE_GLOBAL_MEM_SIZE) << " in total)";
    }
    return new Buffer{memory, &device};
  }

  void FreeDataSpace(DLDevice, void* pointer) final {
    std::unique_ptr<Buffer> buffer(static_cast<Buffer*>(pointer));
    if (buffer != nullptr && Runtime::Usable()) {
      Runtime::Get().driver().clReleaseMemObject(buffer->memory);
    }
  }

  void StreamSync(DLDevice dev, TVMStreamHandle) final {
    Runtime& runtime = Runtime::Get();
    runtime.Finish(runtime.Device(dev.device_id));
  }

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset, size_t size,
                      DLDevice dev_from, DLDevice dev_to, DLDataType, TVMStreamHandle) final {
    if (size == 0) return;
    Runtime& runtime = Runtime::Get();
    const Driver& cl = runtime.driver();
    auto buffer = [&](const void* data, DLDevice dev) {
      runtime.Device(dev.device_id);  // throws if the device cannot be used
      return static_cast<const Buffer*>(data);
    };
    auto host = [](const void* data, size_t offset) {
      return static_cast<char*>(const_cast<void*>(data)) + offset;
    };
    auto read = [&](void* into) {
      const Buffer* source = buffer(from, dev_from);
      runtime.Check(cl.clEnqueueReadBuffer(QueueOf(*source->device), source->memory, CL_TRUE,
                                           from_offset, size, into, 0, nullptr, nullptr),
                    "clEnqueueReadBuffer");
    };
    auto write = [&](const void* out) {
      const Buffer* target = buffer(to, dev_to);
      runtime.Check(cl.clEnqueueWriteBuffer(QueueOf(*target->device), target->memory, CL_TRUE,
                                            to_offset, size, out, 0, nullptr, nullptr),
                    "clEnqueueWriteBuffer");
    };
    const bool is_from_device = dev_from.device_type == kDLOpenCL;
    const bool is_to_device = dev_to.device_type == kDLOpenCL;
    if (is_from_device && is_to_device && dev_from.device_id == dev_to.device_id) {
      const Buffer* source = buffer(from, dev_from);
      const Buffer* target = buffer(to, dev_to);
      runtime.Check(
          cl.clEnqueueCopyBuffer(QueueOf(*source->device), source->memory, target->memory,
                                 from_offset, to_offset, size, 0, nullptr, nullptr),
          "clEnqueueCopyBuffer");
    } else if (is_from_device && is_to_device) {
      std::vector<char> between(size);
      read(between.data());
      write(between.data());
    } else if (is_from_device) {
      read(host(to, to_offset));
    } else {
      write(host(from, from_offset));
    }
  }
};

// TVM's own declaration needs a header that its wheel lacks. The method order must match.
class TimerNode : public ffi::Object {
 public:
  virtual void Start() = 0;
  virtual void Stop() = 0;
  virtual int64_t SyncAndGetElapsedNanos() = 0;
  virtual ~TimerNode() {}

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO("runtime.TimerNode", TimerNode, ffi::Object);
};

// Time of the kernels on the device, without the gaps between them; wall-clock time if no kernel
// ran.
class KernelTimer final : public TimerNode {
 public:
  explicit KernelTimer(DLDevice dev) : device_(Runtime::Get().Device(dev.device_id)) {}

  ~KernelTimer() {
    if (times_ != nullptr) times_->Close();
  }

  void Start() final {
    Runtime::Get().Finish(device_);
    times_ = KernelTimes::Of(device_);
    times_->Open();
    start_ = times_->Collect();
    launches_ = times_->launches();
    clock_ = std::chrono::steady_clock::now();
  }

  // Later commands go to the other queue, so everything in this one has to finish first.
  void Stop() final {
    Runtime::Get().Finish(device_);
    auto wall = std::chrono::steady_clock::now() - clock_;
    int64_t nanos = static_cast<int64_t>(times_->Collect() - start_);
    if (times_->launches() == launches_) {
      nanos = std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count();
    }
    elapsed_ = nanos;
    times_->Close();
    times_ = nullptr;
  }

  int64_t SyncAndGetElapsedNanos() final { return elapsed_; }

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvmtune.opencl.KernelTimer", KernelTimer, TimerNode);

 private:
  ClDevice& device_;
  std::shared_ptr<KernelTimes> times_;  // while the timer runs
  uint64_t start_ = 0;
  uint64_t launches_ = 0;
  int64_t elapsed_ = 0;
  std::chrono::steady_clock::time_point clock_;
};

class Timer : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(Timer, ffi::ObjectRef, TimerNode);
};

}  // namespace tvmtune_opencl
