; Moves the weights of a library into huge pages; tvmtune/library/huge_pages.py fills in what stands
; between @.
;
; The library's program calls @NAME@(weight, ...) on every run. TVM's loader has put the weights into
; pages of 4 KB by then, and a kernel that streams 100 MB of them misses the TLB 25,000 times. The first
; call for a loaded program asks the kernel to replace these pages (MADV_COLLAPSE, since Linux 6.1). It
; may refuse, and then all stays as it was.

%Any = type { i32, i32, ptr }         ; TVMFFIAny: type, padding, value
; DLTensor: data, device (type, number), rank, dtype (code, bits, lanes), shape, strides, offset
%Tensor = type { ptr, i32, i32, i32, i8, i8, i16, ptr, ptr, i64 }

@seen = internal global [@PROGRAMS@ x ptr] zeroinitializer  ; the first weight of each program

declare i32 @madvise(ptr, i64, i32)

; The size of a tensor in bytes.
define internal i64 @bytes(ptr %tensor) {
entry:
  %rank_place = getelementptr %Tensor, ptr %tensor, i32 0, i32 3
  %rank = load i32, ptr %rank_place
  %bits_place = getelementptr %Tensor, ptr %tensor, i32 0, i32 5
  %bits = load i8, ptr %bits_place
  %wide = zext i8 %bits to i64
  %each = lshr i64 %wide, 3
  %shape_place = getelementptr %Tensor, ptr %tensor, i32 0, i32 7
  %shape = load ptr, ptr %shape_place
  br label %again
again:
  %axis = phi i32 [ 0, %entry ], [ %next, %more ]
  %size = phi i64 [ %each, %entry ], [ %product, %more ]
  %left = icmp slt i32 %axis, %rank
  br i1 %left, label %more, label %done
more:
  %extent_place = getelementptr i64, ptr %shape, i32 %axis
  %extent = load i64, ptr %extent_place
  %product = mul i64 %size, %extent
  %next = add i32 %axis, 1
  br label %again
done:
  ret i64 %size
}

; Replace the pages of a large tensor. Its first and last huge page hold other data, too, usually the
; tensors before and after it.
define internal void @collapse(ptr %tensor) {
  %size = call i64 @bytes(ptr %tensor)
  %large = icmp sge i64 %size, @LARGE@
  br i1 %large, label %advise, label %done
advise:
  %data = load ptr, ptr %tensor
  %start = ptrtoint ptr %data to i64
  %end = add i64 %start, %size
  %from = and i64 %start, -2097152
  %beyond = add i64 %end, 2097151
  %to = and i64 %beyond, -2097152
  %length = sub i64 %to, %from
  %place = inttoptr i64 %from to ptr
  call i32 @madvise(ptr %place, i64 %length, i32 25)  ; MADV_COLLAPSE
  br label %done
done:
  ret void
}

; The tensor in an argument: it follows the 24 bytes of TVMFFIObject.
define internal ptr @tensor(ptr %arguments, i32 %index) {
  %place = getelementptr %Any, ptr %arguments, i32 %index, i32 2
  %object = load ptr, ptr %place
  %tensor = getelementptr i8, ptr %object, i64 24
  ret ptr %tensor
}

; Whether this call is the first for a program. If too many programs have been loaded, none is.
define internal i1 @claim(ptr %weight) {
entry:
  br label %again
again:
  %i = phi i64 [ 0, %entry ], [ %next, %other ]
  %slot = getelementptr [@PROGRAMS@ x ptr], ptr @seen, i64 0, i64 %i
  %swap = cmpxchg ptr %slot, ptr null, ptr %weight seq_cst seq_cst
  %free = extractvalue { ptr, i1 } %swap, 1
  br i1 %free, label %yes, label %taken
taken:
  %holder = extractvalue { ptr, i1 } %swap, 0
  %same = icmp eq ptr %holder, %weight
  br i1 %same, label %no, label %other
other:
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, @PROGRAMS@
  br i1 %more, label %again, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

define i32 @__tvm_ffi_@NAME@(ptr %self, ptr %arguments, i32 %count, ptr %result) {
entry:
  %any = icmp sgt i32 %count, 0
  br i1 %any, label %look, label %done
look:
  %type = load i32, ptr %arguments
  %is_tensor = icmp eq i32 %type, 70
  br i1 %is_tensor, label %first, label %done
first:
  %tensor0 = call ptr @tensor(ptr %arguments, i32 0)
  %data = load ptr, ptr %tensor0
  %claimed = call i1 @claim(ptr %data)
  br i1 %claimed, label %again, label %done
again:
  %i = phi i32 [ 0, %first ], [ %next, %again ]
  %tensor = call ptr @tensor(ptr %arguments, i32 %i)
  call void @collapse(ptr %tensor)
  %next = add i32 %i, 1
  %more = icmp slt i32 %next, %count
  br i1 %more, label %again, label %done
done:
  ret i32 0
}
