; web: answers a request line on the serial port and sleeps in between.
;   /NAME LF  ->  200 TEXT CR LF, or 404 no such page CR LF
; It knows three pages; the table at the end says which. One request at a time: the next line comes
; after the answer. The receive FIFO interrupts at four bytes, or at fewer when the line goes quiet,
; and the identification register says which; so a short request is taken with one `rep insb`.
bits 16
org 0x7C00
path    equ 0x7E00              ; 64 bytes of memory behind the boot sector

        jmp 0:start             ; some firmware enters at 07C0:0000
start:  cli
        cld
        xor ax, ax
        mov ds, ax
        mov es, ax
        mov ss, ax
        mov sp, 0x7C00
        mov word [0x0C * 4], serial     ; IRQ 4 arrives as vector 0x0C
        mov [0x0C * 4 + 2], ax

        mov al, 0x30            ; PIT channel 0: one shot, so that it never ticks again
        out 0x43, al
        xor al, al
        out 0x40, al
        out 0x40, al
        mov al, 0xEF            ; master controller: only IRQ 4
        out 0x21, al
        mov al, 0xFF            ; second controller: none
        out 0xA1, al

        mov dx, 0x3FB
        mov al, 0x03            ; 8 data bits, no parity, divisor latch closed
        out dx, al
        mov dx, 0x3FA
        mov al, 0x47            ; FIFOs on and empty, interrupt from four bytes on
        out dx, al
        mov dx, 0x3FC
        mov al, 0x0B            ; DTR, RTS, and OUT2: the gate to the interrupt line
        out dx, al
        mov dx, 0x3F9
        mov al, 0x01            ; interrupt on received data
        out dx, al
        mov ah, 0
        mov di, path            ; DI: where the next byte of the path goes
        xor cx, cx
        mov dx, 0x3FA           ; DX: interrupt identification, whenever asleep
        sti
sleep:  hlt
        jmp sleep

serial: in al, dx               ; the main program only sleeps: no register of its is in the way
        test al, 0x01           ; no interrupt is pending: a latched edge whose byte was taken before
        jnz eoi
        mov cl, 4               ; trigger level reached: four bytes are there
        test al, 0x08
        jz take
one:    mov cl, 1               ; time-out: fewer are
take:   mov dl, 0xF8            ; data
        rep insb
        mov dl, 0xFD            ; line status, kept in BL: bit 0 more bytes, bit 5 room to send
        in al, dx
        mov bl, al
        cmp byte [di - 1], 10
        je answer
        cmp di, path + 60
        jb more
        mov di, path + 1        ; too long to be a known path: only its end matters now
more:   test bl, 0x01
        jnz one
eoi:    mov dl, 0xFA
        mov al, 0x20            ; end of interrupt
        out 0x20, al
        iret

answer: mov si, pages           ; AH is 0: `send` counts it down
known:  lodsb                   ; length of a known path, 0 after the last
        mov cl, al
        jcxz found
        mov di, path
        repe cmpsb
        je found
        add si, cx              ; skip the rest of the path
        lodsb
        add si, ax              ; and its text
        jmp known
found:  lodsb
        mov ah, al              ; AH: how much of the text is left
send:   test bl, 0x20
        jz poll
        mov cl, 16              ; an empty transmit FIFO takes 16 bytes
        cmp ah, cl
        jae burst
        mov cl, ah
burst:  sub ah, cl
        mov dl, 0xF8
        rep outsb
        mov dl, 0xFD
        jz sent                 ; the flags are still those of the subtraction
poll:   in al, dx
        mov bl, al
        jmp send
sent:   mov di, path
        jmp more

%macro page 2                   ; path, text
%strlen path_length %1
%strlen text_length %2
        db path_length + 1, %1, 10, text_length + 2, %2, 13, 10
%endmacro

pages:  page '/hi',    '200 hello from micro VM'
        page '/about', '200 one boot sector of 512 bytes'
        page '/',      '200 pages: /hi /about'
        db 0, none_end - none
none:   db '404 no such page', 13, 10
none_end:

        times 510 - ($ - $$) db 0
        dw 0xAA55
