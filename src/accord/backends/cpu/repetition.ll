; Rounds of a loop: a program is walked again and again, with other operands by turns.
;
; What is changed between rounds is described by words of 64 bits, see repetition.py.

; copy by a list of (target, source, bytes, step of the target, step of the source)
define internal void @copy_all(ptr %list, i64 %count) nounwind {
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %body ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %body, label %out
body:
  %entry.at = getelementptr [5 x i64], ptr %list, i64 %k
  %source.at = getelementptr i64, ptr %entry.at, i64 1
  %bytes.at = getelementptr i64, ptr %entry.at, i64 2
  %target.step.at = getelementptr i64, ptr %entry.at, i64 3
  %source.step.at = getelementptr i64, ptr %entry.at, i64 4
  %target = load ptr, ptr %entry.at
  %source = load ptr, ptr %source.at
  %bytes = load i64, ptr %bytes.at
  %target.step = load i64, ptr %target.step.at
  %source.step = load i64, ptr %source.step.at
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %bytes, i1 false)
  %target.next = getelementptr i8, ptr %target, i64 %target.step
  %source.next = getelementptr i8, ptr %source, i64 %source.step
  store ptr %target.next, ptr %entry.at
  store ptr %source.next, ptr %source.at
  %k.next = add i64 %k, 1
  br label %head
out:
  ret void
}

; put values into words and change them, by a list of (word, value, difference)
define internal void @count_all(ptr %list, i64 %count) nounwind {
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %body ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %body, label %out
body:
  %entry.at = getelementptr [3 x i64], ptr %list, i64 %k
  %value.at = getelementptr i64, ptr %entry.at, i64 1
  %step.at = getelementptr i64, ptr %entry.at, i64 2
  %word = load ptr, ptr %entry.at
  %value = load i64, ptr %value.at
  %step = load i64, ptr %step.at
  store i64 %value, ptr %word
  %value.next = add i64 %value, %step
  store i64 %value.next, ptr %value.at
  %k.next = add i64 %k, 1
  br label %head
out:
  ret void
}

; whether any of the words at these addresses is not zero
define internal i1 @any(ptr %list, i64 %count) nounwind {
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %body ]
  %some = phi i64 [ 0, %entry ], [ %some.next, %body ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %body, label %out
body:
  %entry.at = getelementptr ptr, ptr %list, i64 %k
  %word = load ptr, ptr %entry.at
  %value = load i64, ptr %word
  %some.next = or i64 %some, %value
  %k.next = add i64 %k, 1
  br label %head
out:
  %found = icmp ne i64 %some, 0
  ret i1 %found
}

define void @${rounds}(ptr %given) nounwind {
entry:
${loads}
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %goes ]
  %more = icmp slt i64 %i, %wanted
  br i1 %more, label %body, label %out
body:
  %turn = and i64 %i, 1
  %odd = icmp ne i64 %turn, 0
  %words = select i1 %odd, ptr %second.words, ptr %first.words
  %after = select i1 %odd, ptr %second.after, ptr %first.after
  %after.count = select i1 %odd, i64 %second.after.count, i64 %first.after.count
  call void @llvm.memcpy.p0.p0.i64(ptr %table, ptr %words, i64 %table.bytes, i1 false)
  call void @count_all(ptr %counters, i64 %counters.count)
  call void @copy_all(ptr %before, i64 %before.count)
  call void %walk(ptr %rows, i64 %phases, ptr %pool, i64 %threads, ptr null)
  call void @copy_all(ptr %after, i64 %after.count)
  call void @copy_all(ptr %collected, i64 %collected.count)
  %i.next = add i64 %i, 1
  %refused = call i1 @any(ptr %checks, i64 %checks.count)
  br i1 %refused, label %out, label %asks
asks:
  %has = icmp ne ptr %condition, null
  br i1 %has, label %test, label %goes
test:
  %truth = load i8, ptr %condition
  %yes = icmp ne i8 %truth, 0
  br i1 %yes, label %goes, label %out
goes:
  br label %head
out:
  %done = phi i64 [ %i, %head ], [ %i.next, %body ], [ %i.next, %test ]
  store i64 %done, ptr %given
  ret void
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
