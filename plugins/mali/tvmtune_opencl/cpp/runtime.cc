// An OpenCL runtime for TVM's Python wheel, which generates OpenCL C but cannot run it.
//
// It registers under the names of TVM's own OpenCL runtime, unless TVM has that one.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstdio>
#include <cstring>
#include <unordered_map>

#include "devices.h"

namespace tvmtune_opencl {

// TVM's own declaration needs a header that its wheel lacks; the fields must match its layout.
class FunctionInfoObj : public ffi::Object {
 public:
  ffi::String name;
  ffi::Array<DLDataType> arg_types;
  ffi::Array<ffi::String> launch_param_tags;
  ffi::Array<int64_t> arg_extra_tags;

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("runtime.FunctionInfo", FunctionInfoObj, ffi::Object);
};

class FunctionInfo : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(FunctionInfo, ffi::ObjectRef, FunctionInfoObj);
};

// Reads numbers and strings from a serialized module, little endian.
class Reader {
 public:
  explicit Reader(const ffi::Bytes& bytes) : at_(bytes.data()), end_(at_ + bytes.size()) {}

  template <typename T>
  T Number() {
    T value;
    std::memcpy(&value, Take(sizeof(T)), sizeof(T));
    return value;
  }

  std::string String() {
    const uint64_t size = Number<uint64_t>();
    return std::string(Take(size), size);
  }

  // A count of entries of at least one byte each, checked before memory is reserved for them.
  uint64_t Count() {
    const uint64_t count = Number<uint64_t>();
    if (count > static_cast<uint64_t>(end_ - at_)) Damaged();
    return count;
  }

 private:
  const char* Take(uint64_t size) {
    if (size > static_cast<uint64_t>(end_ - at_)) Damaged();
    const char* from = at_;
    at_ += size;
    return from;
  }

  [[noreturn]] static void Damaged() {
    TVM_FFI_THROW(ValueError) << "the library's OpenCL part is cut short or damaged";
    TVM_FFI_UNREACHABLE();
  }

  const char* at_;
  const char* end_;
};

class Writer {
 public:
  template <typename T>
  void Number(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }

  void String(const std::string& text) {
    Number<uint64_t>(text.size());
    bytes += text;
  }

  std::string bytes;
};

struct Signature {
  std::string key;
  std::string name;
  std::vector<DLDataType> arguments;
  std::vector<std::string> tags;
  std::vector<int32_t> extra;
};

// Summarizes a build log in one line: its first errors, or else its last line.
inline std::string Errors(const std::string& log) {
  std::istringstream lines(log);
  std::string line, errors, last;
  int count = 0;
  while (std::getline(lines, line)) {
    line.erase(0, line.find_first_not_of(" \t\r"));
    if (line.empty()) continue;
    last = line;
    const bool is_error = line.find("error") != std::string::npos &&
                          line.find("generated") == std::string::npos;
    if (is_error && count < 3) {
      errors += (count++ == 0 ? "" : "; ") + line;
    }
  }
  if (!errors.empty()) return errors;
  return last.empty() ? "the driver gives no reason" : last;
}

// One kernel of a module, built for a device when it is first launched there.
class Kernel {
 public:
  Kernel(Signature signature, std::string source)
      : signature_(std::move(signature)), source_(std::move(source)) {
    static const std::unordered_map<std::string, int> axes = {
        {"blockIdx.x", 0},  {"blockIdx.y", 1},  {"blockIdx.z", 2},
        {"threadIdx.x", 3}, {"threadIdx.y", 4}, {"threadIdx.z", 5}};
    for (const std::string& tag : signature_.tags) {
      auto axis = axes.find(tag);
      if (axis == axes.end()) {
        TVM_FFI_THROW(ValueError) << "OpenCL kernel '" << signature_.key
                                  << "' is launched with '" << tag << "', which OpenCL lacks";
      }
      axes_.push_back(axis->second);
      dimensions_ = std::max(dimensions_, axis->second % 3 + 1);
    }
    for (const DLDataType& type : signature_.arguments) {
      const bool is_integer = type.code == kDLInt || type.code == kDLUInt || type.code == kDLBool;
      const bool sound = type.code == kDLOpaqueHandle ||
                         (is_integer && type.bits % 8 == 0 && type.bits <= 64) ||
                         (type.code == kDLFloat && (type.bits == 32 || type.bits == 64));
      if (!sound || (type.lanes != 1 && type.code != kDLOpaqueHandle)) {
        TVM_FFI_THROW(ValueError) << "OpenCL kernel '" << signature_.key
                                  << "' takes an argument of a type that cannot be passed (code "
                                  << int{type.code} << ", " << int{type.bits} << " bits)";
      }
    }
  }

  ~Kernel() {
    if (!Runtime::Usable()) return;
    for (auto& [index, built] : built_) {
      Runtime::Get().driver().clReleaseKernel(built.kernel);
      Runtime::Get().driver().clReleaseProgram(built.program);
    }
  }

  const Signature& signature() const { return signature_; }

  void Launch(ffi::PackedArgs args) {
    const size_t count = signature_.arguments.size();
    if (args.size() != static_cast<int>(count + axes_.size())) {
      TVM_FFI_THROW(TypeError) << "OpenCL kernel '" << signature_.key << "' takes "
                               << count + axes_.size() << " arguments, not " << args.size();
    }
    size_t sizes[6] = {1, 1, 1, 1, 1, 1};
    for (size_t i = 0; i < axes_.size(); ++i) {
      sizes[axes_[i]] = static_cast<size_t>(args[static_cast<int>(count + i)].cast<int64_t>());
    }
    const size_t* local = sizes + 3;
    size_t global[3];
    for (int i = 0; i < 3; ++i) global[i] = sizes[i] * local[i];
    if (global[0] * global[1] * global[2] == 0) return;  // an empty tensor

    Runtime& runtime = Runtime::Get();
    const Driver& cl = runtime.driver();
    ClDevice& device = runtime.Device(DeviceOf(args));
    // Arguments are state of the cl_kernel: no other thread may change them before the launch.
    std::lock_guard<std::mutex> lock(mutex_);
    cl_kernel kernel = Get(device).kernel;
    for (size_t i = 0; i < count; ++i) SetArgument(kernel, i, args[static_cast<int>(i)], device);

    KernelTimes& times = *KernelTimes::Of(device);
    cl_event event = nullptr;
    cl_int status = cl.clEnqueueNDRangeKernel(QueueOf(device), kernel,
                                              static_cast<cl_uint>(dimensions_), nullptr, global,
                                              local, 0, nullptr, times.open() ? &event : nullptr);
    if (status != CL_SUCCESS) Refused(status, local, kernel, device);
    if (event != nullptr) times.Add(event);
  }

 private:
  struct Built {
    cl_program program;
    cl_kernel kernel;
  };

  int DeviceOf(ffi::PackedArgs args) const {
    for (size_t i = 0; i < signature_.arguments.size(); ++i) {
      if (signature_.arguments[i].code != kDLOpaqueHandle) continue;
      if (auto* buffer = static_cast<Buffer*>(args[static_cast<int>(i)].cast<void*>())) {
        return buffer->device->index;
      }
    }
    return OpenCLDeviceAPI::Current();
  }

  void SetArgument(cl_kernel kernel, size_t index, ffi::AnyView value, const ClDevice& device) {
    const DLDataType& type = signature_.arguments[index];
    Runtime& runtime = Runtime::Get();
    auto set = [&](size_t size, const void* data) {
      runtime.Check(
          runtime.driver().clSetKernelArg(kernel, static_cast<cl_uint>(index), size, data),
          "clSetKernelArg");
    };
    if (type.code == kDLOpaqueHandle) {
      auto* buffer = static_cast<Buffer*>(value.cast<void*>());
      if (buffer != nullptr && buffer->device != &device) {
        TVM_FFI_THROW(ValueError) << "OpenCL kernel '" << signature_.key
                                  << "' got buffers of both " << device.Label() << " and "
                                  << buffer->device->Label();
      }
      set(sizeof(cl_mem), buffer == nullptr ? nullptr : &buffer->memory);
    } else if (type.code == kDLFloat && type.bits == 32) {
      const float number = static_cast<float>(value.cast<double>());
      set(sizeof(number), &number);
    } else if (type.code == kDLFloat) {
      const double number = value.cast<double>();
      set(sizeof(number), &number);
    } else {
      const int64_t number = value.cast<int64_t>();  // little endian: a prefix is narrower
      set(type.bits / 8, &number);
    }
  }

  const Built& Get(const ClDevice& device) {
    auto found = built_.find(device.index);
    if (found != built_.end()) return found->second;
    Runtime& runtime = Runtime::Get();
    const Driver& cl = runtime.driver();
    const char* text = source_.data();
    const size_t size = source_.size();
    cl_int status = CL_SUCCESS;
    cl_program program = cl.clCreateProgramWithSource(device.context, 1, &text, &size, &status);
    runtime.Check(status, "clCreateProgramWithSource");
    auto fail = [&](const std::string& reason) {
      cl.clReleaseProgram(program);
      TVM_FFI_THROW(RuntimeError) << "OpenCL kernel '" << signature_.key << "' does not build on "
                                  << device.Label() << ": " << reason;
    };
    status = cl.clBuildProgram(program, 1, &device.id, "", nullptr, nullptr);
    if (status != CL_SUCCESS) fail(ErrorName(status) + ": " + Errors(Log(program, device)));
    cl_kernel kernel = cl.clCreateKernel(program, signature_.key.c_str(), &status);
    if (status != CL_SUCCESS) fail("clCreateKernel failed: " + ErrorName(status));
    const cl_ulong wanted = Info<cl_ulong>(kernel, device, CL_KERNEL_LOCAL_MEM_SIZE);
    const cl_ulong there = runtime.Number<cl_ulong>(device.id, CL_DEVICE_LOCAL_MEM_SIZE);
    if (wanted > there) {
      cl.clReleaseKernel(kernel);
      fail("it needs " + std::to_string(wanted) + " bytes of local memory, and there are " +
           std::to_string(there));
    }
    return built_.emplace(device.index, Built{program, kernel}).first->second;
  }

  static std::string Log(cl_program program, const ClDevice& device) {
    const Driver& cl = Runtime::Get().driver();
    size_t size = 0;
    cl.clGetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size);
    std::string log(size, 0);
    cl.clGetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, size, &log[0], nullptr);
    return log.substr(0, log.find('\0'));
  }

  template <typename T>
  static T Info(cl_kernel kernel, const ClDevice& device, cl_uint key) {
    T value{};
    Runtime::Get().driver().clGetKernelWorkGroupInfo(kernel, device.id, key, sizeof(T), &value,
                                                     nullptr);
    return value;  // zero if the driver does not report it
  }

  [[noreturn]] void Refused(cl_int status, const size_t* local, cl_kernel kernel,
                            const ClDevice& device) {
    std::ostringstream text;
    text << "OpenCL kernel '" << signature_.key << "' cannot be launched on " << device.Label()
         << ": " << ErrorName(status);
    if (status == CL_INVALID_WORK_GROUP_SIZE) {
      Runtime& runtime = Runtime::Get();
      text << " (" << local[0] << " x " << local[1] << " x " << local[2]
           << " work-items in a group; the limit is "
           << Info<size_t>(kernel, device, CL_KERNEL_WORK_GROUP_SIZE) << " for the kernel, "
           << runtime.Number<size_t>(device.id, CL_DEVICE_MAX_WORK_GROUP_SIZE)
           << " for the device)";
    }
    TVM_FFI_THROW(RuntimeError) << text.str();
    TVM_FFI_UNREACHABLE();
  }

  const Signature signature_;
  const std::string source_;
  std::vector<int> axes_;
  int dimensions_ = 1;
  std::mutex mutex_;
  std::map<int, Built> built_;
};

class OpenCLModule final : public ffi::ModuleObj {
 public:
  OpenCLModule(std::string format, std::vector<Signature> signatures, std::string code)
      : format_(std::move(format)), code_(std::move(code)) {
    if (format_ != "cl") {
      TVM_FFI_THROW(ValueError) << "OpenCL kernels in the format '" << format_
                                << "' cannot be run, only source can";
    }
    auto sources = Split(code_);
    for (Signature& signature : signatures) {
      auto source = sources.find(signature.key);
      if (source == sources.end()) {
        TVM_FFI_THROW(ValueError) << "the source of OpenCL kernel '" << signature.key
                                  << "' is missing";
      }
      kernels_.push_back(std::make_shared<Kernel>(std::move(signature), source->second));
      by_name_[kernels_.back()->signature().key] = kernels_.back();
    }
  }

  const char* kind() const final { return "opencl"; }

  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    auto found = by_name_.find(name);
    if (found == by_name_.end()) return std::nullopt;
    return ffi::Function::FromPacked(
        [kernel = found->second](ffi::PackedArgs args, ffi::Any*) { kernel->Launch(args); });
  }

  ffi::String InspectSource(const ffi::String& format) const final {
    return format.empty() || format == "cl" ? ffi::String(code_) : ffi::String();
  }

  ffi::Bytes SaveToBytes() const final {
    Writer writer;
    writer.String(format_);
    writer.Number<uint64_t>(kernels_.size());
    for (const auto& kernel : kernels_) {
      const Signature& signature = kernel->signature();
      writer.String(signature.key);
      writer.String(signature.name);
      writer.Number<uint64_t>(signature.arguments.size());
      for (const DLDataType& type : signature.arguments) {
        writer.Number<uint8_t>(type.code);
        writer.Number<uint8_t>(type.bits);
        writer.Number<uint16_t>(type.lanes);
      }
      writer.Number<uint64_t>(signature.tags.size());
      for (const std::string& tag : signature.tags) writer.String(tag);
      writer.Number<uint64_t>(signature.extra.size());
      for (int32_t extra : signature.extra) writer.Number<int32_t>(extra);
    }
    writer.String(code_);
    return ffi::Bytes(std::move(writer.bytes));
  }

  static ffi::Module FromBytes(const ffi::Bytes& bytes) {
    Reader reader(bytes);
    std::string format = reader.String();
    std::vector<Signature> signatures(reader.Count());
    for (Signature& signature : signatures) {
      signature.key = reader.String();
      signature.name = reader.String();
      signature.arguments.resize(reader.Count());
      for (DLDataType& type : signature.arguments) {
        type.code = reader.Number<uint8_t>();
        type.bits = reader.Number<uint8_t>();
        type.lanes = reader.Number<uint16_t>();
      }
      signature.tags.resize(reader.Count());
      for (std::string& tag : signature.tags) tag = reader.String();
      signature.extra.resize(reader.Count());
      for (int32_t& extra : signature.extra) extra = reader.Number<int32_t>();
    }
    std::string code = reader.String();
    return Make(std::move(format), std::move(signatures), std::move(code));
  }

  // Called by the code generator. The fourth argument repeats the source, for inspection.
  static ffi::Module Create(ffi::Bytes code, ffi::String format,
                            ffi::Map<ffi::String, FunctionInfo> functions,
                            ffi::Map<ffi::String, ffi::String>) {
    std::vector<Signature> signatures;
    for (const auto& [key, info] : functions) {
      Signature signature{key, info->name, {}, {}, {}};
      for (DLDataType type : info->arg_types) signature.arguments.push_back(type);
      for (const ffi::String& tag : info->launch_param_tags) signature.tags.push_back(tag);
      for (int64_t extra : info->arg_extra_tags) {
        signature.extra.push_back(static_cast<int32_t>(extra));
      }
      signatures.push_back(std::move(signature));
    }
    return Make(format, std::move(signatures), std::string(code.data(), code.size()));
  }

 private:
  static ffi::Module Make(std::string format, std::vector<Signature> signatures,
                          std::string code) {
    return ffi::Module(ffi::make_object<OpenCLModule>(std::move(format), std::move(signatures),
                                                      std::move(code)));
  }

  // Splits the source by kernel, so that one that does not build leaves the others usable.
  static std::unordered_map<std::string, std::string> Split(const std::string& code) {
    std::unordered_map<std::string, std::string> sources;
    std::istringstream lines(code);
    const std::string mark = "// Function: ";
    std::string line;
    std::string* current = nullptr;
    while (std::getline(lines, line)) {
      if (line.compare(0, mark.size(), mark) == 0) {
        current = &sources[line.substr(mark.size())];
      } else if (current != nullptr) {
        *current += line + "\n";
      }
    }
    return sources;
  }

  const std::string format_;
  const std::string code_;
  std::vector<std::shared_ptr<Kernel>> kernels_;  // functions may outlive the module
  std::unordered_map<std::string, std::shared_ptr<Kernel>> by_name_;
};

// The devices as JSON, with what TVM's attributes lack. Clients of boards call it, too.
inline ffi::String Describe() {
  Runtime& runtime = Runtime::Get();
  std::ostringstream out;
  auto text = [&](const char* key, const std::string& value) {
    out << ", \"" << key << "\": " << ffi::EscapeStringJSON(ffi::String(value)).c_str();
  };
  auto number = [&](const char* key, uint64_t value) {
    out << ", \"" << key << "\": " << value;
  };
  out << "{\"devices\": [";
  for (size_t i = 0; i < runtime.size(); ++i) {
    ClDevice& device = runtime.Info(i);
    cl_device_id id = device.id;
    out << (i == 0 ? "{" : ", {") << "\"id\": " << i;
    text("name", device.name);
    text("platform", device.platform_name);
    text("vendor", runtime.Text(id, CL_DEVICE_VENDOR));
    text("version", runtime.Text(id, CL_DEVICE_VERSION));
    text("driver", runtime.Text(id, CL_DRIVER_VERSION));
    text("kind", device.type & CL_DEVICE_TYPE_GPU   ? "gpu"
                 : device.type & CL_DEVICE_TYPE_CPU ? "cpu"
                                                    : "accelerator");
    text("extensions", runtime.Text(id, CL_DEVICE_EXTENSIONS));
    text("local_memory", runtime.Number<cl_uint>(id, CL_DEVICE_LOCAL_MEM_TYPE) == 1 ? "own"
                                                                                    : "global");
    number("local_memory_bytes", runtime.Number<cl_ulong>(id, CL_DEVICE_LOCAL_MEM_SIZE));
    number("memory_bytes", runtime.Number<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_SIZE));
    number("largest_buffer_bytes", runtime.Number<cl_ulong>(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE));
    number("cache_bytes", runtime.Number<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE));
    number("work_group", runtime.Number<size_t>(id, CL_DEVICE_MAX_WORK_GROUP_SIZE));
    number("compute_units", runtime.Number<cl_uint>(id, CL_DEVICE_MAX_COMPUTE_UNITS));
    number("mhz", runtime.Number<cl_uint>(id, CL_DEVICE_MAX_CLOCK_FREQUENCY));
    number("float_vector", runtime.Number<cl_uint>(id, CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT));
    out << "}";
  }
  out << "]";
  text("library", runtime.size() != 0 ? runtime.driver().path : "");
  text("problem", runtime.problem());
  out << "}";
  return out.str();
}

TVM_FFI_STATIC_INIT_BLOCK() {
  // Registering a name twice would end the process.
  if (ffi::Function::GetGlobal("device_api.opencl").has_value()) return;
  TVMFFIVersion version;
  TVMFFIGetVersion(&version);
  if (version.major != TVM_FFI_VERSION_MAJOR || version.minor != TVM_FFI_VERSION_MINOR ||
      version.patch != TVM_FFI_VERSION_PATCH) {
    std::fprintf(stderr, "tvmtune: the OpenCL add-on was built for another tvm-ffi: not used\n");
    return;
  }
  ffi::reflection::GlobalDef()
      .def("device_api.opencl",
           []() -> void* {
             return static_cast<tvm::runtime::DeviceAPI*>(OpenCLDeviceAPI::Get());
           })
      .def("ffi.Module.load_from_bytes.opencl", OpenCLModule::FromBytes)
      .def("ffi.Module.create.opencl", OpenCLModule::Create)
      .def("runtime.timer.opencl",
           [](DLDevice dev) { return Timer(ffi::make_object<KernelTimer>(dev)); })
      .def("tvmtune.opencl.describe", Describe);
}

}  // namespace tvmtune_opencl

// Waits for all kernels. Python calls it when it exits, before static objects of the driver are
// destroyed that its threads may be using.
extern "C" void tvmtune_opencl_finish() { tvmtune_opencl::Runtime::FinishAll(); }
