; spin: never halts. It counts in memory, so that its share of the processor can be read there.
bits 16
org 0x7C00

        jmp 0:start             ; some firmware enters at 07C0:0000
start:  cli
        xor ax, ax
        mov ds, ax
        mov si, count
again:  add word [si], 1
        adc word [si + 2], 0
        jmp again

count:  dd 0

        times 510 - ($ - $$) db 0
        dw 0xAA55
