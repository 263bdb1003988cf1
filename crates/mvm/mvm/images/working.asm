; working: computes for 10 ms of each second, and halts between ticks of 10 ms for the rest. It is the
; CPU profile duty of share 0.01 and period_ms 1000, built.
bits 16
org 0x7C00

        jmp 0:start             ; some firmware enters at 07C0:0000
start:  cli
        cld
        xor ax, ax
        mov ds, ax
        mov ss, ax
        mov sp, 0x7C00
        mov word [0x08 * 4], tick       ; IRQ 0 arrives as vector 0x08
        mov [0x08 * 4 + 2], ax

        mov al, 0x34            ; PIT channel 0: mode 2, 100 ticks a second
        out 0x43, al
        mov ax, 11932
        out 0x40, al
        mov al, ah
        out 0x40, al
        mov al, 0xFE            ; master controller: only IRQ 0
        out 0x21, al
        mov al, 0xFF            ; second controller: none
        out 0xA1, al
        sti

circle: mov si, table
step:   mov cx, [si + 4]        ; CX: times left
again:  mov bx, [now]
        add bx, [si]            ; BX: end of the busy part
busy:   mov ax, [now]
        sub ax, bx              ; signed difference: the count may wrap
        js busy
        add bx, [si + 2]        ; BX: end of the idle part
idle:   cli                     ; a tick between the test and the halt would be slept through
        mov ax, [now]
        sub ax, bx
        jns over
        sti
        hlt
        jmp idle
over:   sti
        loop again
        add si, 6
        cmp si, table_end
        jb step
        jmp circle

tick:   push ax
        inc word [now]
        mov al, 0x20            ; end of interrupt
        out 0x20, al
        pop ax
        iret

now:    dw 0
table:                          ; busy ticks, idle ticks, times
        dw 1, 99, 1
table_end:

        times 510 - ($ - $$) db 0
        dw 0xAA55
