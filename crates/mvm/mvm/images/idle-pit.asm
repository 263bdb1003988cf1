; idle-pit: halts, but leaves the timer ticking at the rate that the firmware set: 18.2 times a
; second. This is the baseline that true sleep (idle.asm) is compared with.
bits 16
org 0x7C00

        jmp 0:start             ; some firmware enters at 07C0:0000
start:  cli
        xor ax, ax
        mov ds, ax
        mov ss, ax
        mov sp, 0x7C00
        mov word [0x08 * 4], tick       ; IRQ 0 arrives as vector 0x08
        mov [0x08 * 4 + 2], ax

        mov al, 0x36            ; PIT channel 0: mode 3, square wave
        out 0x43, al
        xor al, al              ; divisor 65,536: 1,193,182 Hz / 65,536 = 18.2 Hz
        out 0x40, al
        out 0x40, al
        mov al, 0xFE            ; master controller: only IRQ 0
        out 0x21, al
        mov al, 0xFF            ; second controller: none
        out 0xA1, al
        sti
sleep:  hlt
        jmp sleep

tick:   push ax
        inc word [ticks]
        mov al, 0x20            ; end of interrupt
        out 0x20, al
        pop ax
        iret

ticks:  dw 0

        times 510 - ($ - $$) db 0
        dw 0xAA55
